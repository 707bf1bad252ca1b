"""From JSON to text: figures and tables between markers `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`."""

import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.page.results import FOLDER, Result, read
from tests.bench.page.rows import ROWS, Figure, Row

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "lab" / "measured.md")
FIGURES = "figures"
"""The block with a line for each figure; every other block is named like its row and has its tables."""
BLOCK = re.compile(r"(<!-- bench:(\S+) -->\n).*?(<!-- /bench:\2 -->)", re.DOTALL)
WIDTH = 140
HIDDEN = frozenset({"curve"})


class PageError(Exception):
    """A page has a block that is nobody's, or a result lacks a figure."""


def rendered(text: str, read_row: Callable[[str], Result | None] = read) -> str:
    """A page with its blocks made anew. Raises PageError."""
    known = {row.name: row for row in ROWS}

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if name == FIGURES:
            return f"{match[1]}{figures(read_row)}\n{match[3]}"
        if name not in known:
            raise PageError(f"<!-- bench:{name} -->: there is no such row; rows are {', '.join(known)}")
        return f"{match[1]}{tables(known[name], read_row(name))}\n{match[3]}"

    return BLOCK.sub(block, text)


def figures(read_row: Callable[[str], Result | None] = read, rows: Sequence[Row] = ROWS) -> str:
    """A line for each figure that has been measured, and the names of the rows that have not."""
    lines, missing = [], []
    for row in rows:
        result = read_row(row.name)
        if result is None:
            missing.append(f"`{row.name}`")
            continue
        lines += [_line(row, one, result) for one in row.figures]
    head = ["| what | figure | target | row, date, load |", "|---|---|---|---|"] if lines else []
    tail = textwrap.wrap(f"Not measured yet: {', '.join(missing)}.", WIDTH, break_on_hyphens=False) if missing else []
    return "\n".join([*head, *lines, *([""] if head and tail else []), *tail])


def _line(row: Row, figure: Figure, result: Result) -> str:
    value = value_of(figure, result)
    shown = figure.absent if value is None else f"{value:.3g}"
    met = figure.is_met(value)
    if met is not None:
        shown = f"**{shown}**" if met else f"*{shown}*"
    link = f"[{row.name}](lab/measured.md#{row.name}), {result.date}, {result.load[0]:.1f}"
    return f"| {figure.what} | {shown} | {figure.target} | {link} |"


def value_of(figure: Figure, result: Result) -> float | None:
    """None where the row has that instead, and the figure allows it. Raises PageError if there is no such number."""
    if figure.pattern:
        said = [float(match[1]) for line in result.lines if (match := re.search(figure.pattern, line))]
        return _one_of(figure, result, said, f"line like {figure.pattern!r}")
    lines = result.tables[figure.table] if figure.table < len(result.tables) else []
    chosen = [one for one in lines if all(one.get(key) == value for key, value in figure.where.items())]
    if figure.absent and chosen and all(one.get(figure.column, 0) is None for one in chosen):
        return None
    values = [one[figure.column] for one in chosen if isinstance(one.get(figure.column), int | float)]
    return _one_of(figure, result, values, f"number {figure.column!r} where {figure.where} in table {figure.table}")


def _one_of(figure: Figure, result: Result, values: list[float], what: str) -> float:
    if not values:
        raise PageError(f"{result.row}: no {what}; measure it again: make bench ARGS={result.row}")
    return float(figure.of(values))


def tables(row: Row, result: Result | None) -> str:
    """All that a row measured, with the command, the day and the machine."""
    if result is None:
        return f"Not measured yet: `make bench ARGS={row.name}`."
    load = " to ".join(f"{value:.1f}" for value in result.load)
    parts = [f"`{result.command}`, {result.date}, {result.machine}, load {load}, {result.seconds:.0f} s."]
    for table in result.tables:
        columns = [name for name in dict.fromkeys(key for one in table for key in one) if name not in HIDDEN]
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(_cell(one.get(name)) for name in columns) + " |" for one in table]
        parts.append("\n".join(lines))
    if row.picture:
        parts.append(f"![{row.name}](../images/{row.picture})")
    if result.lines:
        parts.append("\n".join(f"- {line}" for line in result.lines))
    return "\n\n".join(parts)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " / ".join(map(_cell, value))
    return str(value)


def render_pages(folder: Path = FOLDER) -> list[Path]:
    """Write all pages anew; those that changed."""
    changed = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        new = rendered(text, lambda name: read(name, folder))
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed
