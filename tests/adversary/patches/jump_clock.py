"""A time of day that jumps by what a file `clock-jump` in the working directory says, in seconds, from then on.

No file, no jump. As after somebody set the clock of a machine by hand, or a virtual machine was woken; the monotonic
clock is true.
"""

import time
from pathlib import Path

JUMP = "clock-jump"


def apply() -> None:
    """For whoever reads the time of day through the module."""
    real, real_ns, told = time.time, time.time_ns, Path(JUMP).absolute()

    def jumped_s() -> int:
        try:
            return int(told.read_text() or 0)
        except FileNotFoundError:
            return 0

    time.time = lambda: real() + jumped_s()
    time.time_ns = lambda: real_ns() + jumped_s() * 10**9
