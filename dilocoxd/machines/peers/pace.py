"""Measures how long the phases of others last: decides when a contribution is due and how long stragglers may take.

Source: protocol/06-rounds.md (R6), docs/internals.md section 3.
"""

from collections.abc import Iterable
from statistics import median
from typing import Final

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.peers.record import PeerRecords

PACE_NEW: Final = 0.5
"""Weight of the newest measurement in a peer's phase time."""


class Pace:
    """Phase times: intervals between contributions, as this peer saw them."""

    def __init__(self, records: PeerRecords) -> None:
        self._records: Final = records
        self.typical: float | None = None
        """Median of all phase times; None while nothing has been measured."""

    def contributed(self, peer: PeerId, phase: int, now: Monotonic) -> None:
        """Take note of a contribution; the time since the one before is a phase.

        The way to a peer's first contribution is no phase time: starting trainers and reading data for a minute would
        make everybody believe for many rounds that this peer is not due yet, and leave it out.
        """
        times = self._records.of(peer).phases
        before, since = times.phase, times.seen_at
        if phase <= before:
            return
        times.phase, times.seen_at = phase, now
        if since is None:
            return
        at_most = (now - since) / (phase - before)
        at_least = max(0.0, at_most - times.still_s / (phase - before))
        times.still_s = 0.0
        known = times.seconds
        measured = at_most if known is None else min(max(known, at_least), at_most)
        times.seconds = measured if known is None else known + PACE_NEW * (measured - known)
        self.typical = median([one for record in self._records.values() if (one := record.phases.seconds) is not None])

    def absent(self, peers: Iterable[PeerId]) -> None:
        """The time until the next contribution of such a peer says how long it was away: that is no phase time."""
        for peer in peers:
            times = self._records[peer].phases
            times.seen_at, times.still_s = None, 0.0

    def stood_still(self, seconds: float) -> None:
        """We were not running for so long; the others may have been."""
        for record in self._records.values():
            if record.phases.seen_at is not None:
                record.phases.still_s += seconds

    def expected(self, peer: PeerId) -> Monotonic | None:
        """When the peer's next contribution is due; None while its pace is unknown."""
        times = self._records[peer].phases
        return None if times.seconds is None or times.seen_at is None else Monotonic(times.seen_at + times.seconds)

    def planned(self, peer: PeerId, inner_steps: int, step_seconds: float | None) -> Monotonic | None:
        """When the peer has done `inner_steps` since its last contribution; None before its first one and after an
        absence."""
        seen_at = self._records[peer].phases.seen_at
        return None if seen_at is None or step_seconds is None else Monotonic(seen_at + inner_steps * step_seconds)

    def grace(self, limits: RoundLimits) -> float:
        """How long stragglers are waited for; the longest grace while nothing has been measured."""
        if self.typical is None:
            return limits.grace_max_s
        return min(limits.grace_max_s, max(limits.grace_min_s, limits.grace_factor * self.typical))
