"""Folders whose names begin with the time, of which the newest are kept: dumps of hangs, profiles."""

import shutil
import time
from collections.abc import Iterable
from pathlib import Path


def stamp() -> str:
    """The present second as a name begins with it; UTC, or the newest would sort first when the clock is set back."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def keep_newest(folders: Iterable[Path], count: int) -> None:
    """Remove all but the `count` (> 0) that sort last."""
    for old in sorted(folders)[:-count]:
        shutil.rmtree(old, ignore_errors=True)
