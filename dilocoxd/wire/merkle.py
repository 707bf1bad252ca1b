"""Merkle trees over segment hashes: one root names them all, a short proof shows that one of them is under it.

The tree of RFC 9162 section 2.1 with SHA-256: a leaf is H(0x00 + segment hash), a node H(0x01 + left + right), the left
half of n leaves is the largest power of two below n. Leaves and nodes hash different prefixes, so that no node can be
shown as a leaf. How many leaves a tree has follows from the manifest and is never taken from a peer. Pure.
Source: protocol/07-exchange.md, X10.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from dilocoxd.ids import Digest

PROOF_MAX: Final = 32
"""Hashes in a proof: trees of up to 2**32 leaves."""
_LEAF: Final = b"\0"
_NODE: Final = b"\1"


class MerkleTree:
    """All levels of a tree over at least one hash; 64 bytes for each leaf."""

    def __init__(self, hashes: Sequence[bytes]) -> None:
        if not hashes:
            raise ValueError("a tree needs at least one leaf")
        self._levels = [[_leaf(value) for value in hashes]]
        while len(below := self._levels[-1]) > 1:
            paired = [_node(left, right) for left, right in zip(below[::2], below[1::2], strict=False)]
            self._levels.append(paired + below[len(paired) * 2 :])

    @property
    def root(self) -> Digest:
        return Digest(self._levels[-1][0])

    def proof(self, index: int) -> tuple[Digest, ...]:
        """Siblings on the way from leaf `index` to the root; for `is_under`. Raises IndexError."""
        if not 0 <= index < len(self._levels[0]):
            raise IndexError(f"no leaf {index} among {len(self._levels[0])}")
        siblings = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                siblings.append(Digest(level[index ^ 1]))
            index //= 2
        return tuple(siblings)


def merkle_root(hashes: Sequence[bytes]) -> Digest:
    """Root over hashes in their order. Raises ValueError for none.

    >>> merkle_root([bytes(32)]).hex()[:16]
    '7f9c9e31ac8256ca'
    """
    return MerkleTree(hashes).root


def is_under(root: bytes, value: bytes, index: int, num_leaves: int, proof: Sequence[bytes]) -> bool:
    """Whether `value` is leaf `index` of the tree of `num_leaves` with this root. False for any proof that is not
    exactly the one that `MerkleTree.proof` gives; O(log num_leaves), whatever a peer sends."""
    if not 0 <= index < num_leaves:
        return False
    digest, left, width = _leaf(value), iter(proof), num_leaves
    while width > 1:
        if index ^ 1 < width:
            sibling = next(left, None)
            if sibling is None:
                return False
            digest = _node(sibling, digest) if index & 1 else _node(digest, sibling)
        index, width = index // 2, (width + 1) // 2
    return next(left, None) is None and digest == root


def _leaf(value: bytes) -> bytes:
    return hashlib.sha256(_LEAF + value).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()
