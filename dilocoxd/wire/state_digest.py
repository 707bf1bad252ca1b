"""Names a shared state by a tree over its segments: what votes certify (protocol/02, rows segment, anchor and state).

A leaf depends on nothing but its segment, so parts of a state can be hashed apart and at once, and of two states that
differ the leaves say where. The hash of a segment's anchor alone costs nothing more: it is the same hasher, looked at
before the optimizer's state is added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SEGMENT_PREFIX: Final = b"dilocoxd/2/segment\0"
ANCHOR_PREFIX: Final = b"dilocoxd/2/anchor\0"
STATE_PREFIX: Final = b"dilocoxd/2/state\0"
_NUMBER_BYTES: Final = 8


class Leaf(NamedTuple):
    """Hashes of one segment, 32 bytes each: of its anchor alone, and of all that the state has of it."""

    anchor: bytes
    whole: bytes


class Root(NamedTuple):
    """What a state is called by."""

    anchor_sha256: bytes
    state_digest: bytes


def leaf_of(index: int, anchor: ReadableBuffer, rest: Iterable[ReadableBuffer]) -> Leaf:
    """Leaf of segment `index`. `rest`: optimizer state slot by slot, then what MEMORY keeps of it."""
    hasher = _begun(index)
    hasher.update(anchor)
    alone = hasher.digest()
    for data in rest:
        hasher.update(data)
    return Leaf(alone, hasher.digest())


def root_of(round_index: int, header: bytes, leaves: Sequence[Leaf]) -> Root:
    """Of state `round_index`. `header`: of MEMORY, empty in runs without; `leaves`: of all segments, in order."""
    state = hashlib.sha256(STATE_PREFIX + round_index.to_bytes(_NUMBER_BYTES, "big") + header)
    for leaf in leaves:
        state.update(leaf.whole)
    return Root(anchor_root(leaf.anchor for leaf in leaves), state.digest())


def anchor_root(hashes: Iterable[bytes]) -> bytes:
    """sha256 that an anchor is called by, from the hashes of its segments in order."""
    anchor = hashlib.sha256(ANCHOR_PREFIX)
    for each in hashes:
        anchor.update(each)
    return anchor.digest()


def differing(left: Sequence[bytes], right: Sequence[bytes]) -> tuple[int, ...]:
    """Segments whose hashes are not the same; none if one side does not know them all, or has other segments."""
    if len(left) != len(right) or not all(left) or not all(right):
        return ()
    return tuple(index for index, (one, other) in enumerate(zip(left, right, strict=True)) if one != other)


class AnchorStream:
    """Leaves of an anchor that is read once, from its first byte to its last, in pieces of any length."""

    def __init__(
        self, lengths: Sequence[int], rest: Callable[[int], Iterable[ReadableBuffer]] = lambda index: ()
    ) -> None:
        """`lengths`: bytes of each segment's anchor; `rest` as in `leaf_of`, by segment."""
        self._lengths = lengths
        self._rest = rest
        self.leaves: list[Leaf] = []
        self._begin()

    def _begin(self) -> None:
        index = len(self.leaves)
        self._left = self._lengths[index] if index < len(self._lengths) else 0
        self._hasher = _begun(index)

    def add(self, data: ReadableBuffer) -> None:
        """The next bytes. What comes behind the last segment is of no anchor: ValueError."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            if not self._left:
                raise ValueError("more bytes than the segments have")
            self._hasher.update(view[: self._left])
            taken = min(self._left, view.nbytes)
            self._left -= taken
            view = view[taken:]
            if not self._left:
                self._finish()

    def _finish(self) -> None:
        alone = self._hasher.digest()
        for data in self._rest(len(self.leaves)):
            self._hasher.update(data)
        self.leaves.append(Leaf(alone, self._hasher.digest()))
        self._begin()

    @property
    def is_complete(self) -> bool:
        return len(self.leaves) == len(self._lengths)

    @property
    def anchor_sha256(self) -> bytes:
        """Of what was added, if it is complete; of a part of it nothing that anything is called by."""
        return anchor_root(leaf.anchor for leaf in self.leaves)


def _begun(index: int) -> hashlib._Hash:
    return hashlib.sha256(SEGMENT_PREFIX + index.to_bytes(_NUMBER_BYTES, "big"))
