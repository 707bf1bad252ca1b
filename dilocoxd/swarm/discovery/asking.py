"""Runs what a command asks peers, in an event loop of its own, and ends it in order when a signal comes."""

import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeVar

import uvloop

T = TypeVar("T")

_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
_SIGNALLED: Final = 128
"""A shell's exit code for a signal, less its number."""


def run_asking(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Blocks; SIGTERM and SIGHUP cancel it, as the loop's runner does at Ctrl-C.

    An exception from a handler would stop the loop in the middle, and all its tasks at once: p2pd's control tasks too,
    which then never answer the goodbye, and say so for each. Raises SystemExit after a signal, and what `work` raises.
    """
    told: list[int] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            answer = runner.run(_heeding(work, told))
        except asyncio.CancelledError:
            if not told:
                raise
        if not told:
            return answer
    sys.exit(_SIGNALLED + told[0])


async def _heeding(work: Coroutine[Any, Any, T], told: list[int]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end(number: int, _frame: FrameType | None) -> None:
        told.append(number)
        task.cancel()
        loop.call_soon_threadsafe(lambda: None)  # wakes a loop that waits

    with _handled_by(end):
        return await work


@contextmanager
def _handled_by(end: Any) -> Iterator[None]:
    """`end` for the signals that are not ignored; only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDS}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
