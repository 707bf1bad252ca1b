"""A clock two minutes fast, until a file `clock-set` lies in the working directory: what a time service would mend."""

import time
from pathlib import Path

AHEAD_S = 120
SET = "clock-set"


def apply() -> None:
    """For whoever reads the time of day through the module."""
    real, real_ns, is_set = time.time, time.time_ns, Path(SET).absolute()

    def ahead_s() -> int:
        return 0 if is_set.exists() else AHEAD_S

    time.time = lambda: real() + ahead_s()
    time.time_ns = lambda: real_ns() + ahead_s() * 10**9
