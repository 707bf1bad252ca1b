"""Decides how values change inside a TOML file that people wrote: comments, order and all other lines stay."""

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, Final

import tomli_w

from dilocoxd.config.writing import is_tables
from dilocoxd.errors import ConfigError

Sections = Mapping[str, Mapping[str, object]]
_HEADING: Final = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_STATEMENT_LINES_MAX: Final = 10_000


def with_values(text: str, changes: Sections, *, source: str, comment: Callable[[str, str], list[str]]) -> str:
    """`text` with the fields of `changes` set, section by section; a field that says so already stays as written.

    Args:
        source: name of the file, for the error.
        comment: lines to put above a field (section, name) that was not in the file.
    Raises ConfigError if the file writes a section in a way that cannot be changed line by line.
    """
    wanted: dict[str, Any] = tomllib.loads(text)
    lines = text.splitlines()
    for section, fields in changes.items():
        for field, value in fields.items():
            table = wanted.setdefault(section, {})
            if not isinstance(table, dict) or (field in table and table[field] == value):
                continue
            table[field] = value
            lines = _with_value(lines, (section, field), value, comment)
    changed = "\n".join(lines) + "\n"
    if not _says(changed, wanted):
        names = ", ".join(f"{section}.{field}" for section, fields in changes.items() for field in fields)
        raise ConfigError(
            f"{source}: {names} cannot be changed in place, for its section is not written as [section] with one"
            " `field = value` a line; change the file by hand"
        )
    return changed


def _says(text: str, wanted: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False


def _with_value(
    lines: list[str], name: tuple[str, str], value: object, comment: Callable[[str, str], list[str]]
) -> list[str]:
    section, field = name
    lines = _without_table(lines, f"{section}.{field}")
    first, end = _section(lines, section)
    if first is None:
        return [*lines, "", f"[{section}]", *comment(section, field), *_statement(field, value)]
    place = next((at for at in range(first, end) if re.match(rf"\s*{re.escape(field)}\s*=", lines[at])), None)
    if place is not None and not is_tables(value):
        length = _statement_length(lines, place)
        note = _note(lines[place]) if length == 1 else ""
        written = _statement(field, value)
        return [*lines[:place], *written[:-1], written[-1] + note, *lines[place + length :]]
    if place is not None:
        lines = [*lines[:place], *lines[place + _statement_length(lines, place) :]]
    new = [*comment(section, field), *_statement(field, value)]
    return [*lines[:first], *new, *lines[first:]]


def _statement(field: str, value: object) -> list[str]:
    """As one `field = value`, a table as an inline one."""
    if isinstance(value, Mapping):
        pairs = ", ".join(tomli_w.dumps({key: one}).strip() for key, one in value.items())
        return [f"{field} = {{ {pairs} }}"]
    return tomli_w.dumps({field: value}).rstrip("\n").splitlines()


def _section(lines: list[str], name: str) -> tuple[int | None, int]:
    """(line behind the heading `[name]`, first line of the next heading); (None, 0) if there is none."""
    headings = [(at, match[1]) for at, line in enumerate(lines) if (match := _HEADING.match(line))]
    for index, (at, heading) in enumerate(headings):
        if heading == name:
            return at + 1, headings[index + 1][0] if index + 1 < len(headings) else len(lines)
    return None, 0


def _without_table(lines: list[str], name: str) -> list[str]:
    """Without the table `[name]`, whose values a new statement gives."""
    first, end = _section(lines, name)
    return lines if first is None else [*lines[: first - 1], *lines[end:]]


def _statement_length(lines: list[str], place: int) -> int:
    """Lines of the statement that begins at `place`: as many as it takes to be TOML."""
    for length in range(1, min(len(lines) - place, _STATEMENT_LINES_MAX) + 1):
        try:
            tomllib.loads("\n".join(lines[place : place + length]))
        except tomllib.TOMLDecodeError:
            continue
        return length
    return 1


def _note(line: str) -> str:
    """The comment behind the value of a one-line statement, with the blanks before it."""
    for match in re.finditer(r"\s*#", line):
        try:
            tomllib.loads(line[: match.start()])
        except tomllib.TOMLDecodeError:
            continue
        return line[match.start() :]
    return ""
