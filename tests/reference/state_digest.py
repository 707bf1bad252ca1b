"""What a shared state is called, written down once more from protocol/02 alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from dilocoxd.ids import Digest

EMPTY_DIGEST: Final = Digest(bytes(32))
"""Chain head and state digest of a peer that has no state yet."""


def state_digest(round_index: int, header: bytes, contents: Iterable[bytes]) -> bytes:
    """`contents`: of each segment anchor, optimizer state and what memory keeps of it, one after the other."""
    head = b"dilocoxd/2/state\0" + round_index.to_bytes(8, "big") + header
    return hashlib.sha256(head + _leaves(contents)).digest()


def anchor_hash(anchors: Iterable[bytes]) -> bytes:
    """`anchors`: of each segment."""
    return hashlib.sha256(b"dilocoxd/2/anchor\0" + _leaves(anchors)).digest()


def _leaves(contents: Iterable[bytes]) -> bytes:
    return b"".join(
        hashlib.sha256(b"dilocoxd/2/segment\0" + index.to_bytes(8, "big") + data).digest()
        for index, data in enumerate(contents)
    )
