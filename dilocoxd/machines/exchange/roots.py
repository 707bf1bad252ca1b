"""Keeps which Merkle root stands for whose payload in each pass, so that every summand of a mean is named (X10).

The root of the first pass is part of the contribution; that of a later pass comes with the segments, and the first one
binds its sender. A result names the root over the roots of all its summands. Source: protocol/07-exchange.md.
"""

from collections.abc import Sequence

from dilocoxd.ids import Digest, PeerId
from dilocoxd.wire.entry import Contribution
from dilocoxd.wire.merkle import MerkleTree, merkle_root


class PassRoots:
    """Of one exchange. Roots are bound once; a second one for the same place is refused, never taken."""

    def __init__(self, contributions: Sequence[Contribution]) -> None:
        self._order = tuple(c.peer for c in contributions)
        self._of: dict[tuple[int, PeerId], Digest] = {(0, c.peer): Digest(c.payload_root) for c in contributions}
        self._named: dict[int, Digest] = {}
        """By pass: what the first result said that it is the mean of."""
        self._trees: dict[int, MerkleTree] = {}
        self._summands: dict[int, Digest] = {}
        """Over the roots of all summands, of the passes in which all are known: asked with every segment."""

    def keep_own(self, me: PeerId, pass_index: int, hashes: tuple[Digest, ...]) -> None:
        """Our payload of a pass lies in OUTBOX."""
        self._trees[pass_index] = tree = MerkleTree(hashes)
        self._of[pass_index, me] = tree.root
        self._summands.pop(pass_index, None)

    def own_proof(self, pass_index: int, segment: int) -> tuple[Digest, ...]:
        """That the segment is part of our payload."""
        return self._trees[pass_index].proof(segment)

    def of(self, pass_index: int, peer: PeerId) -> Digest | None:
        """Root of a contributor's payload; None while nothing of a later pass has come from it."""
        return self._of.get((pass_index, peer))

    def bind(self, pass_index: int, peer: PeerId, root: Digest) -> bool:
        """A segment under this root was stored. False if its sender had named another."""
        return self._of.setdefault((pass_index, peer), root) == root

    def summands(self, pass_index: int) -> Digest | None:
        """Root over the roots of all summands of a mean; None while we do not know."""
        if pass_index not in self._summands:
            known = [root for peer in self._order if (root := self._of.get((pass_index, peer))) is not None]
            if len(known) < len(self._order):
                return self._named.get(pass_index)
            self._summands[pass_index] = merkle_root(known)
        return self._summands[pass_index]

    def bind_summands(self, pass_index: int, root: Digest) -> bool:
        """A result of these summands was stored. False if others were known to be its summands."""
        known = self.summands(pass_index)
        if known is None:
            self._named[pass_index] = root
        return known is None or known == root
