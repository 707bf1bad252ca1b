"""Handlers of signals as they were: what a test changes of the process ends with the test.

`dilocoxd.cli.main.main` owns its process, and lets SIGTERM and SIGHUP end it by an exception. Called inside a test it
left that behind: whoever ended pytest, hours later, made some other test fail with SystemExit, and pytest went on.
"""

import contextlib
import signal
from collections.abc import Iterator

ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@contextlib.contextmanager
def kept_handlers() -> Iterator[None]:
    """In the main thread. A handler that no Python set stays whatever it becomes."""
    before = {number: signal.getsignal(number) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
