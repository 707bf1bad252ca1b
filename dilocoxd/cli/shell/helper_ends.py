"""A process that prepares something for a command: it never outlives the command, and why it ended without a word."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Final, NoReturn

from dilocoxd.ipc.child import dies_with_us

_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
"""Somebody else ends the command: a service manager, or a terminal that is closed."""
_SIGNALLED: Final = 128
"""A shell's exit code for a signal, less its number."""


@contextlib.contextmanager
def helper(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """`command` with its output in pipes; killed when the block ends by an exception, or we by a signal.

    It may be deep in a library that hears no Ctrl-C for minutes, and the next one begins anew anyway.
    """
    with (
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=dies_with_us(),  # noqa: PLW1509 (no other thread of ours runs)
        ) as process,
        contextlib.ExitStack() as unless_done,
    ):
        unless_done.callback(process.kill)
        yield process
        unless_done.pop_all()


def end_by_exception() -> None:
    """Let SIGTERM and SIGHUP take down what a command has put up, as Ctrl-C does; who ignores them goes on to."""
    for number in _ENDS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(_SIGNALLED + number)


def cause_of(returncode: int, last: str) -> str:
    """In words, from its exit status and its last line on stderr, which is the exception if it ended by one."""
    if returncode == -signal.SIGKILL:
        return "it was killed, probably for lack of memory"
    if returncode == -signal.SIGXCPU:
        return "its tokenizer comes to no end with one of the texts; give another tokenizer"
    if returncode < 0 or not last:
        return f"it ended with status {returncode}"
    return last
