"""What lies in a folder that a user gives: every file, or a sentence that names what cannot be read."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from dilocoxd.errors import ConfigError, StoreError, reason_of
from dilocoxd.trainer.tokens.store import INDEX

DOCUMENT_BYTES_MAX: Final = 256 << 20
"""A longer line, row or compressed text is refused: a small file can unpack to more than any memory."""


def longest() -> int:
    """Bytes to read at most of one document: one more than it may have."""
    return DOCUMENT_BYTES_MAX + 1


def require_short(num_bytes: int, what: str) -> None:
    """Refuse a document that is too long to be one. Raises ConfigError."""
    if num_bytes > DOCUMENT_BYTES_MAX:
        raise ConfigError(f"{what} has more than {DOCUMENT_BYTES_MAX:,} bytes; split it into several documents")


def files_below(folder: Path) -> list[Path]:
    """All files of `folder` and its folders, sorted; links are followed, also to files that are not there.

    A folder to which several paths lead, or a link that leads back, is read once, under the path that is met first.
    Raises ConfigError for a folder that cannot be listed: what is in it must not be left out in silence.
    """
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for where, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        try:
            there = Path(where).stat()
        except OSError as error:
            _refuse(error)
        if (there.st_dev, there.st_ino) in seen:
            folders.clear()
            continue
        seen.add((there.st_dev, there.st_ino))
        # Folders themselves before links to them: which path is met first must not depend on the disk.
        folders.sort(key=lambda name: (Path(where, name).is_symlink(), name))
        found += [Path(where, name) for name in names]
    return sorted(path for path in found if path.is_symlink() or path.is_file())


def require_free(out: Path, *, plan: Path | None = None) -> None:
    """Refuse a place for a store where there is anything but an unfinished packing, which holds the file `plan`.

    Raises ConfigError.
    """
    try:
        names = {path.name for path in out.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{out} is no folder that can be written to ({error.strerror}); give another OUT") from error
    if INDEX in names:
        raise ConfigError(f"{out} is a finished token store; give another folder, or remove it first")
    # What holds no plan yet has packed nothing: whatever else is there is somebody's.
    if (names - {plan.parent.name} and not plan.exists()) if plan is not None else names:
        raise ConfigError(f"{out} has other files in it; give an empty folder, or one that does not exist")


def require_file(path: Path) -> None:
    """Refuse what has no end, or is waited for: a device, a pipe, also where a link in a folder leads there.

    Raises ConfigError.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever opens it says why it cannot be read
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path} is a device or a pipe, which may never end; write what it gives into a file")


def require_text(data: bytes, path: Path) -> None:
    """Refuse bytes that are no text though they may be UTF-8. Raises ConfigError."""
    place = data.find(b"\0")
    if place >= 0:
        raise ConfigError(f"{path}: byte {place} is zero, so this is no text; take that file out, or convert it")


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Around what reads `path`: its content is the user's to mend, a disk that refuses may do better the next time.

    Raises ConfigError with `remedy` for the first, StoreError for the second, which has an errno.
    """
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StoreError(
                f"{path}: cannot be read now ({os.strerror(error.errno)}); see that its disk or mount answers, then"
                " repeat the command, it goes on"
            ) from error
        raise ConfigError(f"{path}: cannot be read ({reason_of(error)}); {remedy}") from error


def _refuse(error: OSError) -> NoReturn:
    raise ConfigError(f"{error.filename}: cannot be listed ({error.strerror}); give a readable folder") from error
