"""What a command needs of the system before and after all else: open streams, and a sentence for what it is refused."""

import errno
import os
import sys
from typing import Final

from dilocoxd.cli.exit_codes import FAILED
from dilocoxd.errors import ConfigError

_SHOWN_MAX: Final = 160
_OF_THE_PATH: Final = frozenset(
    (
        errno.EACCES,
        errno.EPERM,
        errno.ENAMETOOLONG,
        errno.ELOOP,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOENT,
        errno.EROFS,
    )
)
"""The operator gave a path that cannot be used, or runs as somebody who may not."""


def open_closed_streams() -> None:
    """Give standard input, output and error a place to go where a caller has closed them (`>&-`).

    Else the next file or socket gets their number, and what is printed is written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (as long as we live)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def silence_output() -> None:
    """Nothing more goes to standard output: it refused, and Python would try once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def of_the_system(error: OSError) -> tuple[str, int]:
    """One sentence about what the system refused, and the exit code."""
    reason = error.strerror or str(error)
    if error.filename is None and isinstance(error, FileNotFoundError):
        return "the folder where we are was removed; change into one that is there", ConfigError.exit_code
    if error.filename is None:
        return f"the output cannot be written ({reason}); free space where it goes, or send it elsewhere", FAILED
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    shown = path if len(path) <= _SHOWN_MAX else f"{path[:_SHOWN_MAX]}..."
    if error.errno in _OF_THE_PATH:
        code = ConfigError.exit_code
        return f"{shown}: cannot be used ({reason}); check the path, its owner and its permissions", code
    return f"{shown}: cannot be used ({reason}); check the disk it is on, and free space there", FAILED
