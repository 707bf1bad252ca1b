"""Whether the members of a run have decided: a function of the chain and of signed votes alone.

So every site that has the same chain and the same votes says the same, whomever it has met. They evict one of them, or
replace the authorities (then there is no target). Source: protocol/03-identity.md, M7 and M9;
docs/adr/0014-admission-by-invite-keys.md says why so.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from dilocoxd.ids import Digest, PeerId
from dilocoxd.wire.admission import MemberVote

WINDOW_ENTRIES: Final = 64
"""Electors are the contributors of so many entries before the one that is voted on."""
PRESENCE: Final = 4
"""An elector is in at least one of so many of these entries: who came once and left counts nowhere."""
VOTE_ENTRIES: Final = 1024
"""So many entries a vote is good for, and so long the decision may take to put the peer out of the chain."""
ELECTORS_MIN: Final = 3
"""Fewer replace no authorities: whoever was alone in the first entries could do so for ever."""


class Contributors(Protocol):
    """Who contributed to our chain."""

    @property
    def height(self) -> int:
        """Number of entries."""
        ...

    def hash_at(self, height: int) -> Digest | None:
        """Chain head when it had `height` entries; None: it has fewer."""
        ...

    def of_entry(self, index: int) -> tuple[PeerId, ...]:
        """Contributors of this entry, which is below `height`."""
        ...

    def last_entry(self, peer: PeerId) -> int | None:
        """Newest entry that names `peer`; None: none does."""
        ...


@dataclass(frozen=True, slots=True)
class VoteCount:
    """How far the members are."""

    num_votes: int
    """Of electors, other than the peer that it is about."""
    num_electors: int
    height: int
    """Where it was counted."""

    @property
    def num_needed(self) -> int:
        """At least 2/3 of the electors."""
        return -(-2 * self.num_electors // 3)

    @property
    def is_decided(self) -> bool:
        """Whether that is enough."""
        return self.num_votes >= self.num_needed


def electors_at(chain: Contributors, height: int, target: PeerId | None) -> frozenset[PeerId]:
    """Whose votes count at this height, on the eviction of `target` or, where that is None, on authorities.

    Empty: nobody's, for the target did not contribute lately, or too few did. `target` is one of them in any case: of
    two sites neither can evict the other.
    """
    first = max(0, height - WINDOW_ENTRIES)
    times = Counter(peer for index in range(first, height) for peer in chain.of_entry(index))
    found = frozenset(peer for peer, count in times.items() if PRESENCE * count >= height - first)
    if target is None:
        return found if len(found) >= ELECTORS_MIN else frozenset()
    return found | {target} if target in times else frozenset()


def height_to_vote_at(chain: Contributors, voter: PeerId, target: PeerId | None, settled: int) -> int | None:
    """Where `voter` should vote on `target`: `settled` entries below the tip, which a fork of a few entries leaves
    standing, or at the tip where only that makes both count. None: the vote would not count anywhere."""
    for height in (chain.height - settled, chain.height):
        if height > 0 and voter in electors_at(chain, height, target):
            return height
    return None


def tally(target: PeerId | None, votes: Iterable[MemberVote], chain: Contributors) -> VoteCount | None:
    """The count at the height, among those that were voted on, that decides, or else at the newest.

    None: nothing can be said on this chain (its votes are about another one, or about entries that we lack; or the
    peer went on contributing long after, so the chain itself did not follow).
    """
    standing = [vote for vote in votes if vote.peer != target and chain.hash_at(vote.height) == vote.head]
    last, newest = (chain.last_entry(target) if target is not None else 0), None
    for height in sorted({vote.height for vote in standing}, reverse=True):
        electors = electors_at(chain, height, target)
        if not electors or last is None or last >= height + VOTE_ENTRIES:
            continue
        counted = {v.peer for v in standing if height - VOTE_ENTRIES < v.height <= height} & electors
        found = VoteCount(len(counted), len(electors), height)
        if found.is_decided:
            return found
        newest = newest or found
    return newest
