"""The shared buffers of a site: memfds owned by the daemon, so that what is in them survives any worker.

The daemon itself uses pread and pwrite only: its resident memory must not grow with the model. Sizes are sealed, so
that no worker can shrink a buffer under another one's mapping.
"""

import ctypes
import fcntl
import os
from collections.abc import Iterable

from dilocoxd.errors import WorkerError, reason_of
from dilocoxd.wire.local.buffers import Buffer

_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_F_ADD_SEALS = 1033
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4


def _create(name: str, size: int) -> int:
    fd = os.memfd_create(f"dilocoxd-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise WorkerError(f"no shared memory for buffer {name} of {size} bytes: {reason_of(error)}") from error
    return fd


class Buffers:
    """Named memfds. Pages are allocated at first touch, so sparse buffers cost only what is used."""

    def __init__(self) -> None:
        self._fds: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)

    def provide(self, wanted: Iterable[Buffer]) -> None:
        """Create what is missing. Raises WorkerError if a buffer exists with another size (another manifest)."""
        for buffer in wanted:
            known = self._sizes.get(buffer.name)
            if known is None:
                self._fds[buffer.name] = _create(buffer.name, buffer.size)
                self._sizes[buffer.name] = buffer.size
            elif known != buffer.size:
                raise WorkerError(f"buffer {buffer.name} has {known} bytes, the outer worker now wants {buffer.size}")

    def descriptors(self, names: Iterable[str]) -> tuple[list[int], list[int]]:
        """File descriptors and sizes, in the order of `names`. Raises KeyError."""
        chosen = list(names)
        return [self._fds[name] for name in chosen], [self._sizes[name] for name in chosen]

    def size(self, name: str) -> int:
        """Bytes of buffer `name`; 0 if there is none."""
        return self._sizes.get(name, 0)

    def fd(self, name: str) -> int:
        """File descriptor, for system calls that copy without us. Raises KeyError."""
        return self._fds[name]

    def _check(self, name: str, offset: int, length: int) -> int:
        if offset < 0 or length < 0 or offset + length > self.size(name):
            raise ValueError(f"{offset}..{offset + length} is outside buffer {name} of {self.size(name)} bytes")
        return self._fds[name]

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises ValueError outside the buffer."""
        fd = self._check(name, offset, length)
        parts = []
        while length > 0:
            part = os.pread(fd, length, offset)  # the kernel gives at most 2 GiB at once
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, name: str, offset: int, data: bytes | bytearray | memoryview) -> None:
        """All of `data`. Raises ValueError outside the buffer."""
        view = memoryview(data).cast("B")
        fd = self._check(name, offset, len(view))
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written

    def punch(self, name: str, offset: int, length: int) -> None:
        """Give the memory of this range back; it reads as zeros. Raises ValueError, OSError."""
        fd = self._check(name, offset, length)
        if length == 0:
            return
        mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
        if self._libc.fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Close all; what they held is gone when the last worker has unmapped it."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        self._sizes.clear()
