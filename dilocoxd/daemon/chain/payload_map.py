"""Decides where a segment payload lies in OUTBOX, INBOX and RESULT. Pure.

The buffers are described in wire/local/outer_worker.py.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dilocoxd.errors import StoreError
from dilocoxd.wire.local.buffers import INBOX, RESULT


@dataclass(frozen=True, slots=True)
class Place:
    """`length` bytes at `offset` of the shared buffer `buffer`."""

    buffer: str
    offset: int
    length: int


Table = tuple[tuple[int, ...], ...]


class PayloadMap:
    """Offsets that follow from payload sizes, [pass][segment]; `stride`: bytes of an INBOX slot."""

    def __init__(self, payload_bytes: Table, stride: int | None = None) -> None:
        self.payload_bytes = payload_bytes
        self.lengths = tuple(itertools.chain.from_iterable(payload_bytes))
        """Bytes of each (pass, segment), in the order of an entry's result hashes."""
        self.total_bytes = sum(self.lengths)
        self._stride = self.total_bytes if stride is None else stride
        self._offsets = tuple(itertools.accumulate(self.lengths, initial=0))

    @property
    def num_passes(self) -> int:
        return len(self.payload_bytes)

    @property
    def segment_bytes(self) -> tuple[int, ...]:
        """Bytes per segment of all passes together."""
        return tuple(sum(column) for column in zip(*self.payload_bytes, strict=True))

    def span(self, pass_index: int) -> tuple[int, int]:
        """Offset and length of all segments of one pass in OUTBOX or RESULT."""
        return sum(map(sum, self.payload_bytes[:pass_index])), sum(self.payload_bytes[pass_index])

    def _index(self, pass_index: int, segment: int) -> int:
        before = sum(len(row) for row in self.payload_bytes[:pass_index])
        if not (0 <= pass_index < len(self.payload_bytes) and 0 <= segment < len(self.payload_bytes[pass_index])):
            raise ValueError(f"no segment {segment} in pass {pass_index}")
        return before + segment

    def own(self, buffer: str, pass_index: int, segment: int) -> Place:
        """In OUTBOX or RESULT. Raises ValueError if there is no such segment."""
        index = self._index(pass_index, segment)
        return Place(buffer, self._offsets[index], self.lengths[index])

    def inbox(self, slot: int, pass_index: int, segment: int) -> Place:
        """In a slot of INBOX. Raises ValueError if there is no such segment."""
        index = self._index(pass_index, segment)
        return Place(INBOX, slot * self._stride + self._offsets[index], self.lengths[index])

    def arrival(self, slot: int | None, pass_index: int, segment: int) -> Place:
        """Where received bytes go: a slot of INBOX, or RESULT when `slot` is None."""
        return self.own(RESULT, pass_index, segment) if slot is None else self.inbox(slot, pass_index, segment)


class PayloadMaps:
    """One map for each low rank that entries of the run may use."""

    def __init__(
        self, tables: Mapping[int, Table], numel: int = 0, record_bytes: int = 0, center_start: int = 0
    ) -> None:
        """`tables`: by low rank, as the outer worker described them. `numel`: values of the state; 0: not known."""
        self.numel: Final = numel
        self.record_bytes: Final = record_bytes
        """Of the record at the end of each result of the last pass."""
        self.center_start: Final = center_start
        """Where in MEMORY that lies which shares are compared with; 0: nothing is."""
        self._stride = max((sum(map(sum, table)) for table in tables.values()), default=0)
        self._maps = {lowrank_r: PayloadMap(table, self._stride) for lowrank_r, table in tables.items()}

    def at(self, lowrank_r: int) -> PayloadMap:
        """Of entries with this low rank. Raises StoreError for one that the run does not use."""
        found = self._maps.get(lowrank_r)
        if found is None:
            raise StoreError(f"an entry of low rank {lowrank_r} cannot be of this run, which uses {sorted(self._maps)}")
        return found

    @property
    def is_known(self) -> bool:
        """The outer worker has said what payloads are."""
        return bool(self._maps)

    @property
    def largest(self) -> PayloadMap:
        """The map of the longest payloads."""
        return max(self._maps.values(), key=lambda each: each.total_bytes)
