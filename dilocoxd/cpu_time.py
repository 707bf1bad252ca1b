"""Tells a block of code that it has had its CPU time: what a library makes of somebody else's bytes may never end."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

AGAIN_S: Final = 1
"""Where the word is not heard, it is said again: what is raised in a callback of the garbage collector, or where an
object ends, goes no further than that."""


@contextmanager
def told_after(seconds: int, tell: Callable[[int, FrameType | None], NoReturn]) -> Iterator[None]:
    """Around a block; `tell` is called in it, and raises what the block shall end with.

    Time in the kernel counts as well, as for RLIMIT_CPU: where a loop takes memory and gives it back at each turn it is
    most of all. A library that is deep in one call hears no signal. In other threads than the first one of a process
    nothing is told, for they hear none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, tell)
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN_S)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
