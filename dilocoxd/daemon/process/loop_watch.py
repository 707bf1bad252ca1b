"""Notices that the daemon's loop comes back late, and what held it up: a thread looks at the loop's stack meanwhile.

A loop that is late can only say so afterwards, when what blocked it is over. The thread looks once per delay; the
innermost calls of ours and of libraries are named, not the loop's own. Nothing is named when the thread did not run
either: code that holds the interpreter lock, a starved machine, or a frozen process.
"""

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

from dilocoxd.daemon.workers.supervisor import nap

FRAMES_NAMED: Final = 3
_LOOP_FILES: Final = ("uvloop", "asyncio", "selectors.py")
Report = Callable[[float, str], None]
"""(seconds late, what the loop was doing; empty: nobody saw it)"""


async def watch_loop_lag(report: Report, *, interval_s: float = 0.25, lag_max_s: float = 0.1) -> None:
    """Call `report` when the loop came back later than asked by more than `lag_max_s`; until cancelled."""
    with _Witness(lag_max_s) as witness:
        while True:
            witness.expect(interval_s)
            lag = await nap(interval_s)
            if lag > lag_max_s:
                report(lag, witness.saw)


def innermost(frame: FrameType | None) -> str:
    """`file.py:12 function` of the innermost calls below the loop, outermost first; empty: the loop is idle."""
    calls: list[str] = []
    while frame is not None and len(calls) < FRAMES_NAMED:
        path = Path(frame.f_code.co_filename)
        if any(part in _LOOP_FILES for part in path.parts):
            break
        calls.append(f"{path.name}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " > ".join(reversed(calls))


class _Witness:
    """A thread that wakes up when the loop should have come back and has not."""

    def __init__(self, lag_max_s: float) -> None:
        self.saw = ""
        self._lag_max_s = lag_max_s
        self._due = float("inf")
        self._watched = threading.get_ident()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop witness", daemon=True)

    def __enter__(self) -> "_Witness":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def expect(self, seconds: float) -> None:
        """The loop will be back in so many seconds."""
        self.saw = ""
        self._due = time.monotonic() + seconds

    def _run(self) -> None:
        while not self._is_over.wait(self._lag_max_s / 2):
            if not self.saw and time.monotonic() > self._due + self._lag_max_s:
                self.saw = innermost(sys._current_frames().get(self._watched))
