"""Decides who reduces which segment: in proportion to bandwidth, and the same peers as before where that is fair.

Integer arithmetic only. Source: protocol/07-exchange.md (owners).
"""

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from dilocoxd.ids import PeerId

SHARE_MAX = 3
"""Most segments that one contributor reduces, in those of all others together."""


def assign_owners(
    segment_bytes: Sequence[int], bandwidths: Sequence[int], previous: Sequence[int | None] | None = None
) -> tuple[int, ...]:
    """Index of the owner of each segment, in proportion to bandwidth (0 = unknown = the mean of the known ones).

    Without `previous`, each contributor owns one stretch: when bandwidths change a little, only segments at its ends
    change hands, so that what an owner still owes a segment (its residual) stays with who will reduce it next.
    `previous[s]` keeps an owner of the attempt before, so that inputs already sent to it need not be sent again.
    Integer arithmetic only. O(segments * log(contributors)).
    """
    weights = _weights(bandwidths)
    if previous is None:
        return _stretches(segment_bytes, weights)
    loads = [0] * len(weights)
    owners = list(previous)
    for segment, owner in enumerate(owners):
        if owner is not None:
            loads[owner] += segment_bytes[segment]
    scale = max(weights)
    heap = [(load * scale // weight, index) for index, (load, weight) in enumerate(zip(loads, weights, strict=True))]
    heapq.heapify(heap)
    for segment, size in enumerate(segment_bytes):
        if owners[segment] is None:
            _, index = heap[0]
            owners[segment] = index
            loads[index] += size
            heapq.heapreplace(heap, (loads[index] * scale // weights[index], index))
    return tuple(owner for owner in owners if owner is not None)


def lasting_owners(
    before: Sequence[PeerId], peers: Sequence[PeerId], segment_bytes: Sequence[int], bandwidths: Sequence[int]
) -> tuple[int, ...] | None:
    """Owners of the round before, if the same peers contribute and none has more than twice its part; else None.

    Measured bandwidths are noisy; an owner that changes leaves its residual behind, in memory and in the mean.
    """
    if set(before) != set(peers) or len(before) != len(segment_bytes):
        return None
    index = {peer: number for number, peer in enumerate(peers)}
    owners = tuple(index[peer] for peer in before)
    weights = _weights(bandwidths)
    loads = [0] * len(peers)
    for owner, size in zip(owners, segment_bytes, strict=True):
        loads[owner] += size
    limit = 2 * sum(segment_bytes)
    is_fair = all(load * sum(weights) <= limit * weight for load, weight in zip(loads, weights, strict=True))
    return owners if is_fair else None


def _weights(bandwidths: Sequence[int]) -> list[int]:
    """Parts of the segments. Two share equally: each sends as much whoever owns what, only their memory differs.

    Of more, nobody gets over three quarters: an owner keeps the residuals of all that it reduces, and one that owned
    nearly everything would need 5 times the parameters for a gain of an eighth of the slow links' time.
    """
    if len(bandwidths) == 2:
        return [1, 1]
    known = [b for b in bandwidths if b > 0]
    typical = sum(known) // len(known) if known else 1
    weights = [max(1, b if b > 0 else typical) for b in bandwidths]
    fastest = max(range(len(weights)), key=weights.__getitem__)
    others = sum(weights) - weights[fastest]
    if others:
        weights[fastest] = min(weights[fastest], SHARE_MAX * others)
    return weights


def _stretches(segment_bytes: Sequence[int], weights: Sequence[int]) -> tuple[int, ...]:
    """Consecutive segments to consecutive contributors: a segment goes to whose part its middle lies in."""
    ends = list(accumulate(weights))
    total = sum(segment_bytes)
    owners, start = [], 0
    for size in segment_bytes:
        middle = (2 * start + size) * ends[-1]
        owners.append(min(bisect_right(ends, middle // max(1, 2 * total)), len(weights) - 1))
        start += size
    return tuple(owners)
