"""Lets a test stop a process of a site at a named point, to kill something exactly there: DILOCOXD_FAULT=FOLDER.

Without the variable, as in service, nothing happens. With it, a process that comes to point P while the file FOLDER/P
exists writes FOLDER/P.held (its pid) and goes on when FOLDER/P is gone. Commit and apply last milliseconds; nothing
else could hit them reliably. Whoever may set the environment of the daemon may stop it anyway.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

FAULT_VARIABLE: Final = "DILOCOXD_FAULT"
POINTS: Final = ("exchange", "commit", "persisted", "apply", "form", "snapshot", "goodbye")
"""Daemon: before a segment is sent, before an entry is made durable, after that, before its last message to others.
Outer worker (`apply`, `form`): in the middle of an update, when the segment is changed and the journal does not say so
yet; `snapshot`: when all of it is written and nothing is synced."""
_POLL_S: Final = 0.01


def _armed(point: str) -> Path | None:
    assert point in POINTS
    folder = os.environ.get(FAULT_VARIABLE)
    if not folder:
        return None
    path = Path(folder) / point
    return path if path.exists() else None


def _mark(path: Path) -> None:
    path.with_suffix(".held").write_text(str(os.getpid()), "ascii")


async def hold(point: str, announce: Callable[[str], None]) -> None:
    """Wait here while `point` is armed, told to `announce` first; the loop goes on."""
    path = _armed(point)
    if path is None:
        return
    announce(point)
    _mark(path)
    while path.exists():  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(_POLL_S)


def hold_thread(point: str) -> None:
    """The same for a process without a loop; the whole process waits."""
    path = _armed(point)
    if path is None:
        return
    _mark(path)
    while path.exists():
        time.sleep(_POLL_S)
