"""Which entries of our own chain are final: we leave none of them by ourselves, however heavy another branch is. Pure.

Final are all entries up to the newest that is final by depth, by votes, or because the operator adopted it. Only votes
and entries of our own branch count. Source: protocol/06-rounds.md, R28.
"""

from collections.abc import Sequence

from dilocoxd.ids import Digest
from dilocoxd.machines.chain import RECENT_ENTRIES, ChainView
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.wire.entry import SignedEntry, entry_hash

Place = tuple[int, Digest]
"""A height and the chain head there."""
VOTERS_MIN = 2
"""Who is alone agrees with itself: two beginnings of one run would never become one."""


def num_final(own: Sequence[SignedEntry], base: ChainView, limits: RoundLimits, adopted: Place | None = None) -> int:
    """How many of `own`, our entries from a fork to our tip, are final; `base` is the view below the fork."""
    is_adopted = adopted is not None and leads_to(own, adopted)
    by_operator = adopted[0] - base.height if adopted is not None and is_adopted else 0
    return max(by_operator, _by_depth(own, limits.final_depth), _by_votes(own, base, limits))


def leads_to(entries: Sequence[SignedEntry], place: Place) -> bool:
    """Whether one of these entries has this head at this height."""
    height, head = place
    index = height - 1 - entries[0].entry.round if entries else -1
    return 0 <= index < len(entries) and entry_hash(entries[index].entry) == head


def depth_of(round_index: int, final_depth: int) -> int:
    """So many entries must follow the entry of this round. Fewer at the beginning of a run: what is much longer than
    all that two sides have in common is no split, but another beginning."""
    return min(final_depth, RECENT_ENTRIES + round_index)


def _by_depth(own: Sequence[SignedEntry], final_depth: int) -> int:
    if final_depth == 0:
        return 0
    for index in range(len(own) - 1, -1, -1):
        if len(own) - 1 - index >= depth_of(own[index].entry.round, final_depth):
            return index + 1
    return 0


def _by_votes(own: Sequence[SignedEntry], base: ChainView, limits: RoundLimits) -> int:
    """Only where a part that is not the majority cannot go on: it is soon all of its own recent contributors."""
    if limits.final_depth == 0 or not limits.has_majority_quorum:
        return 0
    view, found = base, 0
    for index, signed in enumerate(own):
        electorate = view.electorate(signed.entry.evidence)
        present = len(electorate & {vote.peer for vote in signed.votes})
        if present >= VOTERS_MIN and 3 * present > 2 * len(electorate):
            found = index + 1
        view = view.extended(signed.entry, Digest(bytes(32)))
    return found
