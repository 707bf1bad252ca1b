"""Keeps what was sent and is not confirmed yet, and says in O(log transfers) what is to be tried again, and when.

A pause that is over, or was replaced by another, stays in the heap until it comes up: its transfer knows better.
"""

import heapq
from collections import Counter
from dataclasses import dataclass

from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, SegmentKey

Target = tuple[PeerId, SegmentKey]


@dataclass(slots=True)
class _Transfer:
    number: int
    """In the order in which they were begun, which is that of what is tried again."""
    sha256: Digest
    retry_at: Monotonic | None = None
    """When to try again; None = running."""


class OpenSends:
    """Outgoing payloads of one exchange."""

    def __init__(self) -> None:
        self._open: dict[Target, _Transfer] = {}
        self._delivered: set[Target] = set()
        self._pauses: list[tuple[Monotonic, int, Target]] = []
        self._shares: Counter[PeerId] = Counter()
        """Of the open ones: contributions."""

    def begin(self, peer: PeerId, key: SegmentKey, sha256: Digest) -> bool:
        """False if it is under way or delivered already."""
        if (peer, key) in self._open or (peer, key) in self._delivered:
            return False
        # What is delivered is never begun again: both together count what was begun.
        self._open[peer, key] = _Transfer(len(self._open) + len(self._delivered), sha256)
        self._shares[peer] += key.kind == KIND_CONTRIBUTION
        return True

    def deliver(self, peer: PeerId, key: SegmentKey) -> bool:
        """Its receiver has it. False if that is known, or nothing was sent."""
        if self._open.pop((peer, key), None) is None:
            return False
        self._delivered.add((peer, key))
        self._shares[peer] -= key.kind == KIND_CONTRIBUTION
        return True

    def owners_waiting(self) -> set[PeerId]:
        """Who has not confirmed all that it is to sum of ours."""
        return {peer for peer, count in self._shares.items() if count}

    def fail(self, peer: PeerId, key: SegmentKey, retry_at: Monotonic) -> None:
        """It broke or was refused for now; nothing if it is not under way."""
        transfer = self._open.get((peer, key))
        if transfer is not None and transfer.retry_at != retry_at:
            transfer.retry_at = retry_at
            heapq.heappush(self._pauses, (retry_at, transfer.number, (peer, key)))

    def due(self, now: Monotonic) -> list[tuple[PeerId, SegmentKey, Digest]]:
        """What is to be tried again now, which counts as running from here on; in the order of its beginning."""
        found: list[tuple[int, Target, Digest]] = []
        while (at := self.next_retry()) is not None and at <= now:
            _, number, target = heapq.heappop(self._pauses)
            transfer = self._open[target]
            transfer.retry_at = None
            found.append((number, target, transfer.sha256))
        found.sort(key=lambda each: each[0])
        return [(peer, key, sha256) for _, (peer, key), sha256 in found]

    def next_retry(self) -> Monotonic | None:
        """End of the first pause; None if nothing pauses."""
        while self._pauses:
            at, _, target = self._pauses[0]
            transfer = self._open.get(target)
            if transfer is not None and transfer.retry_at == at:
                return at
            heapq.heappop(self._pauses)
        return None
