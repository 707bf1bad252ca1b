"""What others fetch of our contributions to check a reduction (rule X13), from our kept work.

The files of store/kept_work.py are written before we vote and replaced as a whole, never changed, so what is served of
a phase has the bytes that its offer names, whatever OUTBOX holds by then. `shares/<phase>`: sha256 of each segment's
payload, 32 bytes each; `share/<phase>/<segment>`: the payload.
"""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.errors import StoreError
from dilocoxd.ids import PhaseId
from dilocoxd.store.kept_work import read_front, work_path

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
        self._hashes: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def place(self, phase: int, segment: int) -> KeptPlace:
        """Where our payload of a segment lies. Raises FileNotFoundError, StoreError."""
        whole, lengths = self._whole(phase), self._lengths()
        if segment >= len(lengths):
            raise StoreError(f"there is no segment {segment}")
        return KeptPlace(whole.path, whole.offset + sum(lengths[:segment]), lengths[segment])

    def _whole(self, phase: int) -> KeptPlace:
        path = work_path(self._directory, PhaseId(phase))
        kept, length = read_front(path), sum(self._lengths())
        if kept.num_passes != 1 or not 0 < length <= kept.body_bytes:
            raise StoreError(f"phase {phase} is not kept as one payload")
        return KeptPlace(path, kept.offset, length)

    def unread_bytes(self, phase: int) -> int:
        """What `hashes` has to read; 0 if it is remembered. Raises FileNotFoundError, StoreError."""
        whole = self._whole(phase)
        return 0 if self._key(phase, whole) in self._hashes else whole.length

    def hashes(self, phase: int) -> bytes:
        """sha256 of our payload of each segment, one after the other. Raises FileNotFoundError, StoreError."""
        whole = self._whole(phase)
        key = self._key(phase, whole)
        if key not in self._hashes:
            found, position = [], whole.offset
            try:
                with whole.path.open("rb") as file:
                    for length in self._lengths():
                        found.append(_hash(file.fileno(), position, length))
                        position += length
            except OSError as error:
                raise StoreError(f"reading kept work of phase {phase}: {error}") from error
            self._hashes[key] = b"".join(found)
            while len(self._hashes) > PHASES_KEPT:
                self._hashes.popitem(last=False)
        return self._hashes[key]

    def _key(self, phase: int, whole: KeptPlace) -> tuple[int, int]:
        return phase, whole.path.stat().st_mtime_ns


def share_lengths(payloads: PayloadMaps) -> tuple[int, ...]:
    """Bytes of a payload of each segment; empty before the outer worker has described them."""
    return payloads.largest.payload_bytes[0] if payloads.is_known else ()


def _hash(fd: int, offset: int, length: int) -> bytes:
    digest, end = hashlib.sha256(), offset + length
    while offset < end:
        data = os.pread(fd, min(1 << 20, end - offset), offset)
        if not data:
            raise StoreError("kept work ends too early")
        digest.update(data)
        offset += len(data)
    return digest.digest()
