"""Fields of site.toml from variables `DILOCOXD_SECTION__FIELD`, for containers. They win over the file.

They are never written into it: a variable that is gone has left nothing behind.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dilocoxd.errors import ConfigError

_OTHER_NAMES: Final = {("parallel", "stages"): "pipeline"}
_NAME: Final = re.compile(r"DILOCOXD_([A-Z0-9]+(?:_[A-Z0-9]+)*)__([A-Z0-9_]+)")
_PREFIX: Final = "DILOCOXD_"


def with_environment(
    tables: Mapping[str, Any], environment: Mapping[str, str], fields: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """`tables` with the variables' values over them; `fields`: those of each section of site.toml.

    Raises ConfigError for a section that is none, and for a name that is nearly one of a field.
    """
    known = list(fields)
    meant = {
        _spelled(name): name for section in known for field in fields[section] for name in _variables(section, field)
    }
    found = renamed(tables)
    for variable, text in sorted(environment.items()):
        match = _NAME.fullmatch(variable)
        if match is None:
            if (name := meant.get(_spelled(variable))) and variable.upper().startswith(_PREFIX):
                raise ConfigError(f"{variable} is in the environment, but means nothing; did you mean {name}?")
            continue
        section, field = match[1].lower(), match[2].lower()
        if section not in known:
            raise ConfigError(
                f"{variable} is in the environment, but site.toml has no section {section};"
                f" use one of {', '.join(known)}"
                " (fields of the run are given with --set when it is created)"
            )
        before = found.get(section, {})
        found[section] = {**(before if isinstance(before, dict) else {}), field_name(section, field): toml_value(text)}
    return found


def _spelled(variable: str) -> str:
    """What names have in common that differ in capitals and in how many underscores stand together."""
    return re.sub("_+", "_", variable.upper())


def field_name(section: str, field: str) -> str:
    """The name that a field has in the models: a few have another one for those who write files.

    >>> field_name("parallel", "stages")
    'pipeline'
    """
    return _OTHER_NAMES.get((section, field), field)


def renamed(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of a file, in which a field may be under its other name; both at once are left to the model to refuse."""
    found = dict(tables)
    for (section, other), name in _OTHER_NAMES.items():
        fields = found.get(section)
        if isinstance(fields, dict) and other in fields and name not in fields:
            found[section] = {name if field == other else field: value for field, value in fields.items()}
    return found


def under_names_of(
    file: Mapping[str, Any], changes: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    """`changes` with the field names that `file` uses already, so that no field gets there twice."""
    found = {section: dict(fields) for section, fields in changes.items()}
    for (section, other), name in _OTHER_NAMES.items():
        if name in found.get(section, {}) and other in file.get(section, {}):
            found[section][other] = found[section].pop(name)
    return found


def variable(section: str, field: str) -> str:
    """Name of the variable that gives a field.

    >>> variable("network", "port")
    'DILOCOXD_NETWORK__PORT'
    """
    return f"DILOCOXD_{section}__{field}".upper()


def given_variable(section: str, field: str) -> str:
    """Name of the variable in this environment that gives a field, under whichever of its names; empty if none does."""
    return max(
        (name for name in _variables(section, field) if name in os.environ), default=""
    )  # as with_environment, which takes them in the order of their names


def _variables(section: str, field: str) -> list[str]:
    """Of a field under each of its names."""
    others = [other for (place, other), new in _OTHER_NAMES.items() if (place, new) == (section, field)]
    return [variable(section, each) for each in (field, *others)]


def require_unhidden(tables: Mapping[str, Mapping[str, object]]) -> None:
    """Raises ConfigError if a value that somebody typed now would be hidden by a variable that says something else."""
    for section, fields in tables.items():
        for field, value in fields.items():
            for name in _variables(section, field):
                if name in os.environ and toml_value(os.environ[name]) != value:
                    raise ConfigError(
                        f"{section}.{field} = {value!r} was asked for, but {name}={os.environ[name]} is in the"
                        " environment and wins; take one of them back"
                    )


def toml_value(text: str) -> object:
    """`text` as a TOML value; what is none is text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):  # also thousands of digits or brackets
        return text.strip()
