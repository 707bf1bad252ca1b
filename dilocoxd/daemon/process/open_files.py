"""How many files the daemon may have open: data connections to a hundred sites are more than a shell's usual 1024."""

import contextlib
import resource
from typing import Final

FILES_WANTED: Final = 65_536
"""As in the systemd units."""


def allowable_open_files() -> int:
    """What a daemon that is started from here allows itself: FILES_WANTED, or the hard limit where that is lower; what
    it has already, where that is more."""
    soft, hard = (FILES_WANTED if limit == resource.RLIM_INFINITY else limit for limit in _limits())
    return max(soft, min(FILES_WANTED, hard))


def allow_open_files() -> None:
    """Raise our soft limit of open files as far as `allowable_open_files`; never lower it."""
    soft, hard = _limits()
    wanted = allowable_open_files()
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):  # forbidden here: it goes on with what it has
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
