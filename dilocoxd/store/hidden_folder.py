"""A hidden folder beside the place where its content shall appear: one process at a time works in it.

What a killed process left is cleared away by the next that wants the same place: weights have gigabytes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dilocoxd.errors import ConfigError
from dilocoxd.store.durable import TEMPORARY_SUFFIX


@contextmanager
def hidden_folder(place: Path, suffix: str = TEMPORARY_SUFFIX) -> Iterator[Path]:
    """An empty folder on the disk of `place`, locked; gone at the end, unless it was renamed.

    Raises ConfigError if another process has it, OSError.
    """
    path = place.absolute().with_name(f".{place.absolute().name}{suffix}")
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, path, place)
        try:
            for left in path.iterdir():
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
            yield path
        finally:
            # What was renamed is not here any more, and another process may have made its own folder since.
            if _is_at(descriptor, path):
                shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, place: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = _is_at(descriptor, path)  # else its owner has ended since, and the lock is on what is gone
    except BlockingIOError:
        is_ours = False
    if not is_ours:
        raise ConfigError(f"{place}: another process makes it just now; wait for that one, or give another place")


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
