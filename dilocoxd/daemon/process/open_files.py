"""How many files the daemon may have open: data connections to a hundred sites are more than a shell's usual 1024."""

import contextlib
import resource
from typing import Final

FILES_WANTED: Final = 65_536
"""As in the systemd units."""


def allow_open_files() -> None:
    """Raise our soft limit of open files to FILES_WANTED, or the hard limit where that is lower; never lower it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):  # forbidden here: `doctor` says what the limit is
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
