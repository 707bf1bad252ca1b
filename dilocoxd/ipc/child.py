"""Ties a process to its parent: when the parent dies, so does it."""

import ctypes
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent: int) -> None:
    """From now on this process gets SIGKILL when its parent dies; at once if `parent` is not its parent any more.

    The kernel watches the thread of the parent that forked, so fork from the main thread. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died in between: nobody would tell us again


def dies_with_us() -> Callable[[], None]:
    """What ties a child to this process, for `preexec_fn` of subprocess; only where no other thread of ours runs."""
    return partial(die_with_parent, os.getpid())
