"""A command that kills itself at a moment of its own life: whenever what lies in a folder has changed, counted.

SIGKILL leaves on a disk what the calls before it have made, so the states between the calls are all that a kill at any
hour can leave. Each run is a fork of a process that has loaded the command (warm.py); nothing of it is replaced but
where it reads weights and text, which it does itself (prepared_here.py).
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.harness.published.prepared_here import prepared_here
from tests.harness.running.warm import ORDER_VARIABLE, fork_ordered
from tests.harness.running.warm_daemon import be_command

MOMENT_VARIABLE: Final = "DILOCOXD_TESTS_KILLED_AT"
WRITERS: Final = frozenset(
    (
        *("open", "write", "pwrite", "writev", "sendfile", "copy_file_range", "truncate", "ftruncate", "close"),
        *("__exit__", "mkdir", "rmdir", "rename", "replace", "unlink", "remove", "link", "symlink"),
    )
)
"""Calls of the interpreter behind which a folder may be another; what others change shows behind the next of these."""
State = frozenset[tuple[str, bool]]


def state_of(folder: Path) -> State:
    """Path of all that lies in it, and whether it is a file with something in it: the first bytes are part of one."""
    found: set[tuple[str, bool]] = set()
    left = [str(folder)]
    while left:
        for entry in os.scandir(left.pop()):
            is_folder = entry.is_dir(follow_symlinks=False)
            left += [entry.path] if is_folder else []
            found.add((entry.path, not is_folder and entry.stat().st_size > 0))
    return frozenset(found)


def contents(folder: Path) -> dict[str, bytes]:
    """All files in it, by their paths below it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_command(arguments: Sequence[str], folder: Path, killed_at: int | str = "") -> tuple[int, str]:
    """Exit status of `dilocoxd ARGUMENTS` in `folder` and what it said; -9 if it was killed.

    `killed_at`: behind which change of what lies in `folder` it dies, or what appears there then; empty: never.
    """
    environment = {**os.environ, MOMENT_VARIABLE: str(killed_at)}
    said = folder.parent / f"{folder.name}.said"
    with said.open("wb") as output:
        arguments = ["dilocoxd", *arguments]
        process = fork_ordered(__name__, arguments, folder, environment, {}, output=output.fileno())
        return process.wait(), said.read_text(encoding="utf-8")


def main() -> int:
    """Exit status of the command that the order names."""
    with os.fdopen(os.dup(int(os.environ[ORDER_VARIABLE]))) as file:
        order = json.load(file)
    moment = order["environment"][MOMENT_VARIABLE]
    with prepared_here():
        if moment:
            sys.setprofile(_killer(Path(order["folder"]), moment))
        return be_command(order, is_daemon=False)


def _killer(folder: Path, moment: str) -> Callable[[FrameType, str, Any], None]:
    state, num_changes = state_of(folder), 0

    def look(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal state, num_changes
        if event != "c_return" or called.__name__ not in WRITERS or type(called.__self__) in (str, list, set):
            return
        now = state_of(folder)
        if now == state:
            return
        num_changes += 1
        state = now
        if moment == str(num_changes) or any(f"{path}/".endswith(f"/{moment}/") for path, _ in now):
            os.kill(os.getpid(), signal.SIGKILL)

    return look
