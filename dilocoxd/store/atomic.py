"""Moves bytes into files so that after a crash a file is the old one or the new one, never a mixture.

Write beside the target, fsync the file, rename over the target, fsync the directory.
"""

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

from dilocoxd.errors import StoreError

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def fsync_directory(path: Path) -> None:
    """Make renames and new names inside `path` durable. Raises StoreError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreError(f"{path}: cannot be made durable ({error.strerror})") from error


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`; its folder must exist. Raises StoreError and leaves the old file when that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # O_EXCL after unlink: what a crashed process with our pid left must not decide the mode.
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: cannot be written ({error.strerror}); {_remedy(error)}") from error
    fsync_directory(path.parent)


def write_json_atomically(path: Path, value: Any) -> None:
    """`value` as JSON in `path`, atomically. Raises StoreError."""
    write_atomically(path, json.dumps(value, indent=1, sort_keys=True).encode("utf-8") + b"\n")


def _remedy(error: OSError) -> str:
    return "free some disk space" if error.errno in NO_SPACE else "check the folder and its owner"
