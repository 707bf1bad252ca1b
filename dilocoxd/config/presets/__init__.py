"""Ready-made manifests: `dilocoxd start MODEL` or `dilocoxd start MODEL:STRATEGY`.

MODEL is a TOML file here: a whole manifest with the default strategy. STRATEGY is a file in strategies/: the fields of
[strategy], [outer] and [inner] in which it differs, with an outer learning rate and momentum that are safe for its
delay. Which to choose: docs/strategies.md.
"""

import tomllib
from importlib import resources
from typing import Any

from dilocoxd.errors import ConfigError

STRATEGIES = "strategies"


def preset_names() -> list[str]:
    """Models that `preset_tables` knows, sorted."""
    return _names(".")


def strategy_names() -> list[str]:
    """What may follow the colon, sorted."""
    return _names(STRATEGIES)


def preset_tables(name: str) -> dict[str, Any]:
    """The tables of preset `name`, MODEL or MODEL:STRATEGY. Raises ConfigError with the known names."""
    model, colon, strategy = name.partition(":")
    if model not in preset_names():
        raise ConfigError(
            f"there is no preset and no file {name!r}; use one of {', '.join(preset_names())} or the path of a run.toml"
        )
    tables = _tables(".", model)
    if not colon:
        return tables
    if strategy not in strategy_names():
        raise ConfigError(f"there is no strategy {strategy!r}; use one of {', '.join(strategy_names())}")
    for section, fields in _tables(STRATEGIES, strategy).items():
        tables[section] = {**tables.get(section, {}), **fields}
    return tables


def _names(folder: str) -> list[str]:
    files = resources.files(__name__).joinpath(folder).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _tables(folder: str, name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__name__).joinpath(folder, f"{name}.toml").read_text(encoding="utf-8"))
