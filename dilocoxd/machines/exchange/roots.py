"""Keeps which Merkle root stands for whose payload in each pass, so that every summand of a mean is named (X10).

The root of the first pass is part of the contribution; that of a later pass comes with the segments, and the first one
binds its sender. A result names the root over the roots of all its summands; one that came before all of these were
known is compared as soon as they are. Source: protocol/07-exchange.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dilocoxd.ids import Digest, PeerId
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT
from dilocoxd.wire.entry import Contribution
from dilocoxd.wire.merkle import MerkleTree, merkle_root


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A peer named something else than was said before, by itself or by others: the attempt cannot go on (X10)."""

    peer: PeerId
    """Who is blamed: whose share it is, or the owner whose result is of other summands."""
    pass_index: int
    kind: int
    """Which of its segments: KIND_CONTRIBUTION or KIND_RESULT."""


class PassRoots:
    """Of one exchange. Roots are bound once; a second one for the same place is refused, never taken."""

    def __init__(self, contributions: Sequence[Contribution]) -> None:
        self._order = tuple(c.peer for c in contributions)
        self._of: dict[tuple[int, PeerId], Digest] = {(0, c.peer): Digest(c.payload_root) for c in contributions}
        self._named: dict[int, tuple[PeerId, Digest]] = {}
        """By pass: the owner of the first result that came before all summands were known, and what it named."""
        self._trees: dict[int, MerkleTree] = {}
        self._summands: dict[int, Digest] = {}
        """Over the roots of all summands, of the passes in which all are known: asked with every segment."""

    def keep_own(self, me: PeerId, pass_index: int, hashes: tuple[Digest, ...]) -> Contradiction | None:
        """Our payload of a pass lies in OUTBOX. A result may have come before it."""
        self._trees[pass_index] = tree = MerkleTree(hashes)
        self._of[pass_index, me] = tree.root
        self._summands.pop(pass_index, None)
        return self._misnamed(pass_index)

    def own_proof(self, pass_index: int, segment: int) -> tuple[Digest, ...]:
        """That the segment is part of our payload."""
        return self._trees[pass_index].proof(segment)

    def of(self, pass_index: int, peer: PeerId) -> Digest | None:
        """Root of a contributor's payload; None while nothing of a later pass has come from it."""
        return self._of.get((pass_index, peer))

    def bind(self, pass_index: int, peer: PeerId, root: Digest) -> Contradiction | None:
        """A segment under this root was stored. Its sender may have named another, or an owner other summands."""
        if self._of.setdefault((pass_index, peer), root) != root:
            return Contradiction(peer, pass_index, KIND_CONTRIBUTION)
        return self._misnamed(pass_index)

    def summands(self, pass_index: int) -> Digest | None:
        """Root over the roots of all summands of a mean: what the first result named until we know it; None before."""
        if pass_index not in self._summands:
            known = [root for peer in self._order if (root := self._of.get((pass_index, peer))) is not None]
            if len(known) < len(self._order):
                return self._named[pass_index][1] if pass_index in self._named else None
            self._summands[pass_index] = merkle_root(known)
        return self._summands[pass_index]

    def bind_summands(self, pass_index: int, owner: PeerId, root: Digest) -> Contradiction | None:
        """A result of these summands was stored. Others may be known to be its summands."""
        known = self.summands(pass_index)
        if known is None:
            self._named[pass_index] = (owner, root)
            return None
        return None if known == root else Contradiction(owner, pass_index, KIND_RESULT)

    def _misnamed(self, pass_index: int) -> Contradiction | None:
        """Whether all roots, once they are known, are those that the first result named.

        Only its owner is blamed, though others may have named the same: a contributor that shows two roots could else
        set one site against all owners.
        """
        if pass_index not in self._named:
            return None
        owner, root = self._named[pass_index]
        return None if self.summands(pass_index) == root else Contradiction(owner, pass_index, KIND_RESULT)
