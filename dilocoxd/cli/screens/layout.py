"""Decides how tables and facts are laid out: blanks between columns, no borders, nothing cut.

On a terminal that is too narrow whole columns go, the least needed first, and the last line names them; in a pipe, and
with --wide, all are there, so that grep and cut find what they look for.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.words import wrapped

GAP: Final = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """One column. Those of the highest `rank` go first where the width does not suffice; rank 0 always stays."""

    title: str
    cells: Sequence[str]
    rank: int = 0
    is_number: bool = False

    @property
    def width(self) -> int:
        return max(len(self.title), *(len(cell) for cell in self.cells), 0)


def table(columns: Sequence[Column], width: int | None, below: Sequence[Sequence[str]] = ()) -> str:
    """Lines of a table of at most `width` characters (None: as wide as it is). `below`: lines under each row."""
    shown = fitting(columns, width)
    lines = [_line(shown, [column.title for column in shown])]
    for number in range(len(columns[0].cells)):
        lines.append(_line(shown, [column.cells[number] for column in shown]))
        for text in below[number] if below else ():
            lines += wrapped(f"    {text}", width, len(GAP))
    hidden = [column.title for column in columns if column not in shown]
    if hidden:
        lines += wrapped(f"(with --wide: {', '.join(hidden)})", width)
    return "\n".join(lines)


def fitting(columns: Sequence[Column], width: int | None) -> list[Column]:
    """Those that there is room for."""
    shown = list(columns)
    while width is not None and sum(column.width + len(GAP) for column in shown) - len(GAP) > width:
        least = max(shown, key=lambda column: column.rank)
        if least.rank == 0:
            break
        shown.remove(least)
    return shown


def _line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    parts = [
        cell.rjust(column.width) if column.is_number else cell.ljust(column.width)
        for column, cell in zip(columns, cells, strict=True)
    ]
    return GAP.join(parts).rstrip()


def facts(rows: Sequence[tuple[str, str]], width: int | None) -> str:
    """`name  value` lines; a value that is too long goes on below itself. Empty values are left out."""
    indent = max(len(name) for name, _ in rows) + len(GAP)
    lines = []
    for name, value in rows:
        if value:
            first, *rest = wrapped(value, None if width is None else width - indent)
            lines += [name.ljust(indent) + first, *(" " * indent + line for line in rest)]
    return "\n".join(lines)


def width(*, is_wide: bool) -> int | None:
    """Of the terminal; None: nobody's eyes are on it, or all shall be shown."""
    if is_wide or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns
