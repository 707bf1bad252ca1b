"""Moves bytes to disk so that a crash or a full disk leaves either the old file or the new one, never a half.

Every file that matters is written under a temporary name, fsynced, renamed, and the directory fsynced.
"""

from __future__ import annotations

import bisect
import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from dilocoxd.errors import ConfigError, StoreError

TEMPORARY_SUFFIX = ".tmp"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a link ends in on a file system without them (FAT, some network file systems), or between two of them."""


class DiskFull(StoreError):
    """No space, quota or file size limit reached; what was there before is unchanged."""


class Corrupt(StoreError):
    """Stored bytes are not what was written."""


def is_disk_full(error: BaseException | None) -> bool:
    """It tells of no space, quota or file size limit reached, or was raised because of one that does."""
    while error is not None:
        if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in _FULL):
            return True
        error = error.__cause__
    return False


def store_error(what: str, path: Path, error: OSError) -> StoreError:
    """The StoreError for a failed write, with what the operator should do."""
    if error.errno in _FULL:
        reason = os.strerror(error.errno or errno.ENOSPC)
        return DiskFull(f"{what}: {reason} at {path}; free space there, nothing was changed")
    return StoreError(f"{what}: {error.strerror} at {path}; check the disk and its permissions")


def write_all(fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
    """Write `data` at `offset` and return the offset behind it. Raises OSError."""
    view = memoryview(data).cast("B")
    while view.nbytes:
        count = os.pwrite(fd, view, offset)
        view = view[count:]
        offset += count
    return offset


class SteadyWriter:
    """Writes back to back and syncs every 64 MiB, so that the last fsync of a large file is short."""

    SYNC_BYTES = 64 << 20

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unsynced = 0

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        """`write_all`. Raises OSError."""
        end = write_all(self._fd, data, offset)
        self._unsynced += end - offset
        if self._unsynced >= self.SYNC_BYTES:
            os.fdatasync(self._fd)
            self._unsynced = 0
        return end


class _Written(NamedTuple):
    start: int
    end: int
    sha256: bytes


class EarlyWriter:
    """A file that is begun before it is known what shall be in it, so that its last write and sync are short.

    What was written early is not believed: it stays where it is, byte for byte, what shall be there. Bytes are compared
    for that, and hashed only when they are written: a comparison takes a tenth of the time, while all wait for a vote.
    One caller at a time; everything blocks.
    """

    SYNC_BYTES = 8 << 20
    """So much waits for a sync at most, until the last one."""
    _PIECE_BYTES = 1 << 20

    def __init__(self, mode: int) -> None:
        """`mode`: permissions of the file."""
        self._mode = mode
        self._fd = -1
        self._path: Path | None = None
        self._unsynced = 0
        self._written: list[_Written] = []
        """What is in the file, by place; nothing lies over another."""

    def open(self, path: Path) -> None:
        """At `path`, where a crash may have left another one. Raises OSError."""
        if self._fd >= 0 and self._path == path:
            return
        self.drop()
        path.unlink(missing_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
        self._path = path

    def put(self, source: int, start: int, length: int, at: int) -> bytes:
        """Write `length` bytes from `start` of `source` at `at`, unless they are there; their sha256. Raises OSError,
        EOFError where `source` ends before."""
        end, index = at + length, bisect.bisect_left(self._written, at, key=attrgetter("start"))
        known = self._written[index] if index < len(self._written) else None
        if known is not None and known[:2] == (at, end) and self._is_there(source, start, length, at):
            return known.sha256
        self._overwrite(at, end)
        written = _Written(at, end, self._copy(source, start, length, at))
        bisect.insort(self._written, written)
        self._unsynced += length
        return written.sha256

    def sync_early(self) -> None:
        """If much waits for it. Raises OSError."""
        if self._unsynced >= self.SYNC_BYTES:
            os.fdatasync(self._fd)
            self._unsynced = 0

    def write(self, data: bytes, at: int) -> int:
        """Write what is known only now; returns the offset behind it. Raises OSError."""
        self._overwrite(at, at + len(data))
        return write_all(self._fd, data, at)

    def finish(self, end: int) -> None:
        """The file ends at `end`, and is on disk. Raises OSError; it is still open then."""
        os.ftruncate(self._fd, end)
        os.fsync(self._fd)
        self._close()

    def drop(self) -> None:
        """Nothing is left of what was begun."""
        path = self._path
        self._close()
        if path is not None:
            with suppress(OSError):  # a file of no use
                path.unlink(missing_ok=True)

    def _overwrite(self, start: int, end: int) -> None:
        """What lies there, even in part, is known no more: a payload that is cut otherwise lies elsewhere."""
        first = bisect.bisect_right(self._written, start, key=attrgetter("end"))
        last = bisect.bisect_left(self._written, end, lo=first, key=attrgetter("start"))
        del self._written[first:last]

    def _close(self) -> None:
        fd, self._fd, self._path, self._unsynced, self._written = self._fd, -1, None, 0, []
        if fd >= 0:
            os.close(fd)

    def _is_there(self, source: int, start: int, length: int, at: int) -> bool:
        for done in range(0, length, self._PIECE_BYTES):
            size = min(self._PIECE_BYTES, length - done)
            data = os.pread(source, size, start + done)
            if len(data) < size or data != os.pread(self._fd, size, at + done):
                return False
        return True

    def _copy(self, source: int, start: int, length: int, at: int) -> bytes:
        digest, done = hashlib.sha256(), 0
        while done < length:
            data = os.pread(source, min(self._PIECE_BYTES, length - done), start + done)
            if not data:
                raise EOFError
            digest.update(data)
            write_all(self._fd, data, at + done)  # just these bytes: the source may change meanwhile
            done += len(data)
        return digest.digest()


def fsync_directory(path: Path) -> None:
    """Make renames and removals in `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def link_or_copy(source: Path, target: Path) -> None:
    """Let `target` be the same file, by a link, which takes no space; where there are no links, a synced copy, whole or
    not there. The directory is the caller's to sync. Raises OSError."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
        try:
            with source.open("rb") as read, temporary.open("wb") as written:
                shutil.copyfileobj(read, written, EarlyWriter.SYNC_BYTES)
                written.flush()
                os.fsync(written.fileno())
            temporary.replace(target)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def make_directory(path: Path) -> None:
    """Make it and what is missing above it, durably: what is synced in it is not lost with it. Raises OSError."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        fsync_directory(path.parent)


def stage_file(path: Path, data: bytes, *, mode: int = 0o666) -> Path:
    """Write what shall replace `path` beside it, synced; returns where. Raises StoreError (DiskFull)."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        temporary.unlink(missing_ok=True)  # what a crash has left may have other permissions
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise store_error(f"writing {path.name}", path, error) from error
    return temporary


def write_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace `path` by `data`, atomically and durably. Raises StoreError (DiskFull); the old file then stays.

    `mode`: permissions, from the first byte on, less what the umask takes away.
    """
    temporary = stage_file(path, data, mode=mode)
    try:
        temporary.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise store_error(f"writing {path.name}", path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by `value` as JSON, atomically and durably. Raises StoreError (DiskFull)."""
    write_file(path, json.dumps(value, indent=1, sort_keys=True).encode("utf-8") + b"\n")


@contextmanager
def hidden_folder(place: Path, suffix: str = TEMPORARY_SUFFIX) -> Iterator[Path]:
    """An empty folder beside `place`, where one process at a time makes what shall be there.

    Gone at the end, unless it was renamed. What a killed process left is cleared away: weights have gigabytes.

    Raises ConfigError if another process has it, OSError.
    """
    path = place.absolute().with_name(f".{place.absolute().name}{suffix}")
    if path.is_symlink():  # what it leads to would be cleared: somebody's folder
        raise ConfigError(f"{path}: is a link, where a folder for unfinished work would be; remove it")
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _lock(descriptor, path, place)
        try:
            _clear(descriptor)
            yield path
        finally:
            # What was renamed is not here any more, and another process may have made its own folder since.
            if _is_at(descriptor, path):
                shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _clear(folder: int) -> None:
    """Not by its path, which may lead elsewhere by now."""
    with os.scandir(folder) as entries:
        left = list(entries)
    for entry in left:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.name, dir_fd=folder)
        else:
            os.unlink(entry.name, dir_fd=folder)


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
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
