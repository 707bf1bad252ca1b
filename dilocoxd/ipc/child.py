"""Starts a command that dies with its parent: ``python -m dilocoxd.ipc.child COMMAND...``.

Asks the kernel for SIGKILL at the death of the parent (PR_SET_PDEATHSIG, kept across exec), then becomes the command.
Small on purpose: it imports nothing heavy, so that the wrapper costs some milliseconds only.
"""

import ctypes
import os
import signal
import sys
from typing import Final, NoReturn

_PR_SET_PDEATHSIG: Final = 1
EXIT_USAGE: Final = 64


def die_with_parent() -> None:
    """From now on this process gets SIGKILL when its parent dies. Raises OSError."""
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)  # it died in between: nobody would tell us again


def main(arguments: list[str]) -> NoReturn:
    """Replace this process by the command in `arguments`."""
    die_with_parent()
    if not arguments:
        sys.stderr.write("usage: python -m dilocoxd.ipc.child COMMAND...\n")
        sys.exit(EXIT_USAGE)
    os.execvp(arguments[0], arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
