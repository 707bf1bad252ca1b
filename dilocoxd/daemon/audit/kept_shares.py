"""What others fetch of our contributions to check a reduction (rule X13), from our kept work.

The files of store/kept_work.py are written before we vote and replaced as a whole, never changed, so what is served of
a phase has the bytes that its offer names, whatever OUTBOX holds by then. `shares/<phase>`: sha256 of each segment's
payload, 32 bytes each; `share/<phase>/<segment>`: the payload.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.errors import StoreError
from dilocoxd.ids import PhaseId
from dilocoxd.store.kept_work import front_of, hash_of_stretch, opened_work, work_path

Key = tuple[int, int, int]
"""Phase, and which file it was."""
PHASES_KEPT: Final = 8
"""Phases whose hashes are remembered."""


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """Bytes of a file."""

    path: Path
    offset: int
    length: int


class KeptShares:
    """Of one site whose exchange has one pass. `lengths`: bytes of a payload of each segment; empty: not known yet."""

    def __init__(self, directory: Path, lengths: Callable[[], tuple[int, ...]]) -> None:
        self._directory = directory
        self._lengths = lengths
        self._hashes: OrderedDict[Key, bytes] = OrderedDict()
        self._remembering = threading.Lock()

    def place(self, phase: int, segment: int) -> KeptPlace:
        """Where our payload of a segment lies. Raises FileNotFoundError, StoreError."""
        with opened_work(self._path(phase)) as file:
            whole, lengths = self._payload(file, phase), self._lengths()
        if segment >= len(lengths):
            raise StoreError(f"there is no segment {segment}")
        return KeptPlace(whole.path, whole.offset + sum(lengths[:segment]), lengths[segment])

    def _path(self, phase: int) -> Path:
        return work_path(self._directory, PhaseId(phase))

    def _payload(self, file: BinaryIO, phase: int) -> KeptPlace:
        path = self._path(phase)
        kept, length = front_of(file, path), sum(self._lengths())
        if kept.phase != phase or kept.num_passes != 1 or not 0 < length <= kept.body_bytes:
            raise StoreError(f"phase {phase} is not kept as one payload")
        return KeptPlace(path, kept.offset, length)

    def unread_bytes(self, phase: int) -> int:
        """What `hashes` has to read; 0 if it is remembered. Raises FileNotFoundError, StoreError."""
        with opened_work(self._path(phase)) as file:
            length = self._payload(file, phase).length
            return 0 if _key(file, phase) in self._hashes else length

    def hashes(self, phase: int) -> bytes:
        """sha256 of our payload of each segment, one after the other. Raises FileNotFoundError, StoreError.

        All is read from one open file: the next attempt may put another one in its place meanwhile, or retention
        remove it. Threads may do this at once: what is remembered may be gone again, so it is returned from here.
        """
        with opened_work(self._path(phase)) as file:
            position, key = self._payload(file, phase).offset, _key(file, phase)
            known = self._hashes.get(key)
            if known is not None:
                return known
            found = []
            for length in self._lengths():
                found.append(hash_of_stretch(file.fileno(), position, length))
                position += length
        hashes = b"".join(found)
        with self._remembering:
            self._hashes[key] = hashes
            while len(self._hashes) > PHASES_KEPT:
                self._hashes.popitem(last=False)
        return hashes


def _key(file: BinaryIO, phase: int) -> Key:
    status = os.fstat(file.fileno())
    return phase, status.st_ino, status.st_mtime_ns


def share_lengths(payloads: PayloadMaps) -> tuple[int, ...]:
    """Bytes of a payload of each segment; empty before the outer worker has described them."""
    return payloads.largest.payload_bytes[0] if payloads.is_known else ()
