"""Takes SIGTERM, SIGINT and SIGHUP even while something blocks the loop; ends the process when stopping takes too long.

A signal that only the loop handles is not seen while the loop is blocked, and a limit that only the loop keeps is not
kept. Here the interpreter's C handler writes to a pipe; a thread reads it, starts the clock and tells the loop. The
clock is faulthandler's own thread: it needs neither the loop nor the interpreter lock, writes what every thread was
doing to a file, and ends the process (exit code 1). All that matters is on disk, and the reaper ends the workers.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

EXIT_NOW: Final = 130
"""Second SIGINT: the reaper and the ends of all sockets and pipes take the workers down."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Of a service manager, of a terminal, and of one that is closed or whose connection broke."""


def _leave_it_to_the_thread(number: int, frame: FrameType | None) -> None:
    """A handler in Python must exist, or the interpreter would not write to the pipe."""


def heard() -> list[signal.Signals]:
    """Those that mean us: under `nohup` a terminal that is closed does not."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in _SIGNALS if number != signal.SIGHUP or not is_kept]


class StopSignals:
    """Use as a context manager in the main thread, inside the running loop."""

    def __init__(self, told: Callable[[str], None], stacks: Path, limit_s: float) -> None:
        """`told(signal name)` is called on the loop; stacks of a hung stop go to `stacks`."""
        self._told = told
        self._stacks = stacks
        self._limit_s = limit_s
        self._file: Any = None
        self._is_begun = False
        self._lock = threading.Lock()

    def __enter__(self) -> "StopSignals":
        self._loop = asyncio.get_running_loop()
        self._read_end, self._write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write_end, False)
        # The pipe before the handlers: a signal between the two would be taken, and told to nobody.
        self._old_wakeup = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _leave_it_to_the_thread) for number in heard()}
        self._thread = threading.Thread(target=self._read, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._write_end)
        self._thread.join()
        os.close(self._read_end)
        faulthandler.cancel_dump_traceback_later()
        if self._file is not None:
            self._file.close()
            self._stacks.unlink(missing_ok=True)

    def begin(self) -> None:
        """The process stops from now on, whoever wants it: the limit runs. Any thread; only the first call counts."""
        with self._lock:
            if self._is_begun:
                return
            self._is_begun = True
            with contextlib.suppress(OSError):
                self._file = self._stacks.open("w", encoding="utf-8")
            # Without a file (full disk, removed folder) the stacks go where the events go as well.
            file = self._file if self._file is not None else 2
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=file)

    def _read(self) -> None:
        while True:
            data = os.read(self._read_end, 64)
            if not data:
                return
            for number in data:
                if number in _SIGNALS:
                    self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        if self._is_begun and number == signal.SIGINT:
            os._exit(EXIT_NOW)
        self.begin()
        with contextlib.suppress(RuntimeError):  # the loop has just been closed: there is nothing left to tell
            self._loop.call_soon_threadsafe(self._told, signal.Signals(number).name)
