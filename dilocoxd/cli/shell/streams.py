"""What a command needs of the system before and after all else: open streams."""

import os
import sys


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
