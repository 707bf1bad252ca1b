"""Decides how a configuration is written for people: each field with its effect, unit and range or choices above it."""

import functools
import inspect
import textwrap
from typing import Any, Final, Literal, get_args, get_origin

import tomli_w
from pydantic.fields import FieldInfo

from dilocoxd.config.fields import Section

WIDTH: Final = 110
_NO_RANGE: Final = "Range: as the type says."


def choices(field: FieldInfo) -> tuple[str, ...]:
    """What the value may be, if that is a list of words; else empty."""
    if field.annotation is bool:
        return ("true", "false")
    if get_origin(field.annotation) is Literal:
        return tuple(str(choice) for choice in get_args(field.annotation))
    return ()


def description(field: FieldInfo) -> str:
    """`effect Unit: .. Range: .. Cost: ..`, or `Choices: ..` in the place of the range."""
    text = field.description or ""
    found = choices(field)
    if found:
        return text.replace(_NO_RANGE, f"Choices: {', '.join(found)}.").replace(" Unit: choice.", "")
    return text.replace(f" {_NO_RANGE}", "")


def commented_toml(config: Section) -> str:
    """Text of a TOML file that loads to an equal object."""
    lines: list[str] = []
    for name in type(config).model_fields:
        section = getattr(config, name)
        assert isinstance(section, Section)
        lines += [*comment_lines(inspect.getdoc(type(section)) or ""), f"[{name}]"]
        values: dict[str, Any] = section.model_dump(mode="json")
        fields = type(section).model_fields
        # A table ends the section that it is in, so tables come last.
        for field, value in sorted(values.items(), key=lambda item: is_tables(item[1])):
            lines += [*comment_lines(description(fields[field])), _value_text(name, field, value)]
        lines.append("")
    return "\n".join(lines)


def is_tables(value: object) -> bool:
    """Whether TOML writes the value under headings of its own: a table, or several of them."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))


def _value_text(section: str, field: str, value: Any) -> str:
    if not is_tables(value):
        return tomli_w.dumps({field: value}).rstrip("\n")
    if isinstance(value, dict):
        return f"[{section}.{field}]\n{tomli_w.dumps(value)}".rstrip("\n")
    return "\n".join(f"[[{section}.{field}]]\n{tomli_w.dumps(one)}" for one in value).rstrip("\n")


def comment_lines(text: str) -> list[str]:
    """`text` as comments of at most WIDTH columns."""
    return [*_wrapped(text)]


@functools.cache
def _wrapped(text: str) -> tuple[str, ...]:
    """Kept: these are the texts of fields, and to wrap them takes most of the time of writing."""
    return tuple(f"# {line}" for line in textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False))
