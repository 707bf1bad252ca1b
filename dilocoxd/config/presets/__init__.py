"""Ready-made manifests, one TOML file each; `dilocoxd start NAME` uses them."""

import tomllib
from importlib import resources
from typing import Any

from dilocoxd.errors import ConfigError


def preset_names() -> list[str]:
    """Names that `preset_tables` knows, sorted."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def preset_tables(name: str) -> dict[str, Any]:
    """The tables of preset `name`. Raises ConfigError with the known names."""
    if name not in preset_names():
        raise ConfigError(
            f"there is no preset and no file {name!r}; use one of {', '.join(preset_names())} or the path of a run.toml"
        )
    return tomllib.loads((resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
