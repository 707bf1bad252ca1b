"""What a row measured, as JSON: its tables, and where and when."""

import json
import os
import platform
import re
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "results"


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement of one row."""

    row: str
    command: str
    date: str
    machine: str
    load: tuple[float, float]
    """Load average of a minute, before and after."""
    seconds: float
    tables: list[list[dict[str, Any]]]
    lines: list[str] = field(default_factory=list)
    """What it said besides."""


def result_path(row: str, folder: Path = FOLDER) -> Path:
    return folder / f"{row}.json"


def write(result: Result, folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    result_path(result.row, folder).write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")


def read(row: str, folder: Path = FOLDER) -> Result | None:
    """None: it has not been measured."""
    path = result_path(row, folder)
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    return Result(**{**found, "load": tuple(found["load"])})


def machine() -> str:
    """Processor, cores and libraries, in words."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    processor = names[0] if names else platform.machine()
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {processor}, Python {platform.python_version()}, torch {version('torch')}"


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def parse(text: str) -> tuple[list[list[dict[str, Any]]], list[str]]:
    """(tables, other lines) of what a benchmark printed: JSON, a JSON object on each line, or tables of Markdown."""
    whole = _json(text)
    if whole is not None:
        return [[flat(whole)]], []
    tables: list[list[dict[str, Any]]] = []
    lines: list[str] = []
    header: list[str] = []
    before = ""
    for line in map(str.strip, text.splitlines()):
        if not line:
            before = before if before == "json" else ""  # the next table has a header of its own, with as many columns
            continue
        kind = "json" if line.startswith("{") else "table" if line.startswith("|") else ""
        if kind == "json" and (found := _json(line)) is not None:
            if before != "json":
                tables.append([])
            tables[-1].append(flat(found))
        elif kind == "table":
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if set(line) <= set("|-: "):
                tables.append([])  # what came before it was its header
            elif before == "table" and len(cells) == len(header) and tables:
                tables[-1].append(dict(zip(header, map(_number, cells), strict=True)))
            else:
                header = cells
        else:
            lines.append(line)
            kind = ""
        before = kind
    return tables, lines


def flat(found: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    result: dict[str, Any] = {}
    for key, value in found.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return result


def _json(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
