"""Decides how a configuration file becomes a checked object, and what one sentence tells the operator otherwise."""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dilocoxd.config.environment import toml_value
from dilocoxd.errors import ConfigError

FILE_BYTES_MAX = 1 << 20
SHOWN_MAX = 80
PROBLEMS_MAX = 20
"""Sentences about one file: a file that is another kind of file altogether has one for each of its fields."""

_NUMBER = re.compile(
    r"\s*(?P<number>[+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?)\s*(?P<unit>[A-Za-z%/]*)\s*"
)
"""What people write for a number; another one is told what is wanted, and no more."""

M = TypeVar("M", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises ConfigError when it is missing, unreadable, too large or not TOML."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        reason, remedy = error.strerror or str(error), "give the path of a readable TOML file"
        if path.name == "site.toml" and isinstance(error, FileNotFoundError):
            remedy = f"restore it, or begin from the defaults of a site with `touch {path}`"
        raise ConfigError(f"{path}: cannot be read ({reason}); {remedy}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(
            f"{path}: larger than {FILE_BYTES_MAX} bytes; give a run.toml or site.toml, which are smaller"
        )
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # some editors put a mark in front that nobody sees
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path}: not valid TOML ({error}); correct that line") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not valid TOML (brackets in brackets, too deep); correct that line") from error


def validated(
    model: type[M], tables: Mapping[str, Any], *, source: str, elsewhere: Mapping[str, str] = MappingProxyType({})
) -> M:
    """`tables` as a `model`. Raises ConfigError naming file, field, value and remedy of the first problem, and of all
    others in its `problems`. `elsewhere`: sections of other files, and what other programs have, with the
    sentence on one that is written here."""
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # An unknown field is usually the cause when another one is missing: tell it first.
        problems.sort(key=lambda p: p["type"] != "extra_forbidden")
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        told = [f"{source}: {_misplaced(problem, elsewhere) or _sentence(model, problem)}" for problem in problems]
        told = told[:PROBLEMS_MAX]
        if (num_left := len(problems) - PROBLEMS_MAX) > 0:
            told.append(f"{source}: {num_left} more problem{'s' if num_left > 1 else ''}; mend these first")
        raise ConfigError(f"{told[0]}{more}", told) from error


def _misplaced(problem: ErrorDetails, elsewhere: Mapping[str, str]) -> str:
    if problem["type"] != "extra_forbidden":
        return ""
    return elsewhere.get(".".join(map(str, problem["loc"])), "")


def _sentence(model: type[BaseModel], problem: ErrorDetails) -> str:
    field = ".".join(str(part) for part in problem["loc"]) or "the file"
    kind = problem["type"]
    if kind == "extra_forbidden":
        return _unknown_sentence(model, problem["loc"], field)
    if kind == "missing":
        return f"field {field} is missing; add it"
    if kind == "value_error":
        return str(problem["ctx"]["error"])
    what = f"{field} = {_shown(problem['input'])}"
    return f"{what} is wrong: {_remedy(kind, problem)}"


_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "string": "text in quotes",
    "bool": "true or false",
    "dict": "a table",
    "model": "a table",
    "tuple": "a list in brackets",
    "list": "a list in brackets",
}


def _remedy(kind: str, problem: ErrorDetails) -> str:
    context = problem.get("ctx", {})
    if kind == "literal_error":
        return f"use one of {context.get('expected')}"
    limits = {
        "greater_than": "give a value greater than {gt}",
        "greater_than_equal": "give a value of at least {ge}",
        "less_than": "give a value less than {lt}",
        "less_than_equal": "give a value of at most {le}",
        "multiple_of": "give a multiple of {multiple_of}",
        "string_pattern_mismatch": "it must match {pattern}",
        "string_too_short": "give at least {min_length} characters",
        "string_too_long": "give at most {max_length} characters",
        "too_short": "give at least {min_length} values",
        "too_long": "give at most {max_length} values",
        "finite_number": "give a finite number",
    }
    if kind in limits:
        return limits[kind].format(**context)
    for prefix, wanted in _TYPES.items():
        if kind.startswith(prefix + "_"):
            return f"give {wanted}{_as_number(prefix, problem['input'])}"
    return f"{problem['msg']}; correct it"


def _as_number(wanted: str, written: object) -> str:
    """What is wrong with text in a number's place, the end of "give a number"; empty where that says it all."""
    match = _NUMBER.fullmatch(written) if wanted in ("int", "float") and isinstance(written, str) else None
    if match is None or (wanted == "int" and not match["number"].lstrip("+-").isdigit()):
        return ""
    if match["unit"]:
        return " without a unit (`dilocoxd check-config --explain` says in which it counts)"
    if isinstance(toml_value(match["number"]), str):  # no number in TOML: it wants a digit at both sides of a point
        return ", with digits before and after the point and no zero in front"
    return " without quotes"


def _unknown_sentence(model: type[BaseModel], loc: tuple[int | str, ...], field: str) -> str:
    parent: type[BaseModel] | None = model
    for part in loc[:-1]:
        parent = _submodel(parent, str(part)) if parent is not None else None
    known = list(parent.model_fields) if parent is not None else []
    prefix = ".".join(str(part) for part in loc[:-1])
    is_section = len(loc) == 1 and all(_submodel(model, name) is not None for name in known)
    what = "section" if is_section else "field"
    near = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    if near:
        return f"unknown {what} {field}; did you mean {'.'.join(filter(None, (prefix, near[0])))}?"
    return f"unknown {what} {field}; remove it, known here: {', '.join(known)}"


def _submodel(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    info = model.model_fields.get(name)
    if info is None:
        return None
    candidates = get_args(info.annotation) if get_origin(info.annotation) in (Union, UnionType) else (info.annotation,)
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def canonical_json(tables: Mapping[str, Any]) -> bytes:
    """One byte string for one configuration: sorted keys, shortest floats, no white space, ASCII, no NaN."""
    return json.dumps(tables, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")
