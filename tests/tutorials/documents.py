"""Reads and runs the commands of a tutorial: the lines behind `$ ` in its console blocks, as one shell script.

Blocks with a title are files, which lie there before the first command runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
_MARK = "----- command "


@dataclass(frozen=True)
class Shown:
    """One command and the output that the document shows for it."""

    command: str
    output: tuple[str, ...]


def commands_of(name: str) -> list[Shown]:
    """All commands of docs/tutorials/NAME, in order."""
    found: list[Shown] = []
    text = (TUTORIALS / name).read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```", text, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Shown(line[2:], ()))
            else:
                found[-1] = Shown(found[-1].command, (*found[-1].output, line))
    return found


def write_files(name: str, folder: Path) -> None:
    """The files that docs/tutorials/NAME shows, under their titles."""
    text = (TUTORIALS / name).read_text(encoding="utf-8")
    for path, content in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', text, re.M | re.S):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")


def run(shown: list[Shown], folder: Path, environment: dict[str, str], timeout_s: float) -> list[str]:
    """What each command printed (stdout and stderr). AssertionError with all output if one of them fails."""
    lines = ["set -e"]
    for number, one in enumerate(shown):
        lines += [f"echo '{_MARK}{number}'", one.command]
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": binaries, **environment}
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], cwd=folder, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    parts = done.stdout.split(_MARK)[1:]
    return [part.partition("\n")[2] for part in parts]


def shape(line: str) -> str:
    """A line without what differs from run to run: numbers."""
    return re.sub(r"[0-9][0-9,.]*(?: [kMG]?B)?", "#", line.strip())
