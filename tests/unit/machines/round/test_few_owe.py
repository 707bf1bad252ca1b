"""R12.13: the few who alone hold an exchange up are waited for so long and no longer, though all of it is progress."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.facts import Reduced, SegmentReceived, SegmentSent
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT
from dilocoxd.machines.limits import PayloadShape
from dilocoxd.machines.round.exchanging import FEW_PHASES, FEW_TIMEOUTS, RESULTS_LONGER, look, on_bytes
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.outcomes import EXCHANGING, GiveUp, Outcome, Waiting
from tests.unit.machines.round_world import HASHES, LIMITS, ME, START, B, C, D, height_of, proposal, view

GROUP = (ME, B, C, D)
EACH = 100
SHAPE = PayloadShape(1, (10,) * (EACH * len(GROUP)))
OWNERS = tuple(segment // EACH for segment in range(EACH * len(GROUP)))
PAUSE_S = LIMITS.progress_timeout_s - 1.0
LIMIT_S = FEW_TIMEOUTS * LIMITS.progress_timeout_s
SHARES = {KIND_CONTRIBUTION}
ALL = {KIND_CONTRIBUTION, KIND_RESULT}


class Round:
    """An exchange of four; who is told to be quick has brought and taken everything at once."""

    def __init__(self, *, phase_s: float = 0.0) -> None:
        self.height: Height = height_of(B, C, D)
        if phase_s:
            chain = replace(self.height.chain, inner_steps=10)
            views = [replace(view(peer), step_seconds=phase_s / 10) for peer in (B, C, D)]
            self.height.book.see(views, chain, START)
            self.height.chain = chain
        named = replace(proposal(*GROUP), owners=OWNERS)
        self.height.own.inbox.open(named.contributions, ME)
        self.exchange = Exchange(ME, SHAPE, named, self.height.own.inbox)
        self.height.attempt.begin(ME, self.exchange, START)
        self.exchange.start((HASHES[0],) * len(OWNERS))
        self.now = START

    def segments(self, peer: PeerId) -> range:
        first = sorted(GROUP).index(peer) * EACH
        return range(first, first + EACH)

    def tell(self, event: SegmentReceived | SegmentSent | Reduced) -> None:
        on_bytes(self.height, event, EXCHANGING, self.now)

    def brings(self, peer: PeerId, kind: int, segment: int) -> None:
        key = self.exchange.key(kind, 0, segment)
        phase = self.exchange.by_peer[peer].phase if kind == KIND_CONTRIBUTION else None
        self.tell(SegmentReceived(peer, replace(key, phase=phase), HASHES[1]))

    def takes(self, peer: PeerId) -> None:
        """It has all that it is to sum of ours."""
        for segment in self.segments(peer):
            self.tell(SegmentSent(peer, self.exchange.key(KIND_CONTRIBUTION, 0, segment)))

    def is_quick(self, peer: PeerId, kinds: set[int]) -> None:
        """Brings all of these."""
        self.takes(peer)
        for kind in sorted(kinds):
            for segment in self.segments(ME if kind == KIND_CONTRIBUTION else peer):
                self.brings(peer, kind, segment)

    def trickles(self, peer: PeerId, kind: int, seconds: float) -> Outcome:
        """Brings one segment after the other, each just in time; what a look says when the time is over, or before."""
        found: Outcome = look(self.height, self.now)
        for segment in self.segments(ME if kind == KIND_CONTRIBUTION else peer):
            if isinstance(found, GiveUp) or self.now + PAUSE_S > START + seconds:
                return found
            self.now = Monotonic(self.now + PAUSE_S)
            self.brings(peer, kind, segment)
            found = look(self.height, self.now)
        raise AssertionError("it has brought everything")


@pytest.mark.parametrize("phase_s", [0.0, 5 * LIMIT_S])
def test_r12_who_brings_shares_just_in_time_is_blamed_some_phases_after_most_were_done(phase_s: float) -> None:
    at = Round(phase_s=phase_s)
    limit_s = max(LIMIT_S, FEW_PHASES * phase_s)
    for peer in (B, C):
        at.is_quick(peer, SHARES)
    at.takes(D)
    assert isinstance(at.trickles(D, KIND_CONTRIBUTION, min(limit_s, EACH * PAUSE_S / 2)), Waiting)
    if phase_s:
        return
    found = at.trickles(D, KIND_CONTRIBUTION, limit_s + 2 * PAUSE_S)
    assert isinstance(found, GiveUp) and found.blames == (D,) and found.is_told
    assert f"most others are done since {limit_s:g} s" in found.reason and D in found.reason


def test_r12_who_lacks_results_only_waits_longer() -> None:
    at = Round()
    for peer in (B, C):
        at.is_quick(peer, ALL)
    at.is_quick(D, SHARES)
    at.height.own.orders.clear()
    assert isinstance(at.trickles(D, KIND_RESULT, RESULTS_LONGER * LIMIT_S), Waiting)
    found = at.trickles(D, KIND_RESULT, RESULTS_LONGER * LIMIT_S + 2 * PAUSE_S)
    assert isinstance(found, GiveUp) and found.blames == (D,)


def test_r12_who_is_slow_itself_blames_nobody() -> None:
    """All have brought everything but what waits for our own shares, which none of them has yet."""
    at = Round()
    for peer in (B, C, D):
        for segment in at.segments(ME):
            at.brings(peer, KIND_CONTRIBUTION, segment)
    for peer in (B, C):
        for segment in at.segments(peer):
            at.brings(peer, KIND_RESULT, segment)
    assert isinstance(at.trickles(D, KIND_RESULT, 3 * RESULTS_LONGER * LIMIT_S), Waiting)


def test_r12_two_of_three_others_are_not_few() -> None:
    at = Round()
    at.is_quick(B, SHARES)
    for peer in (C, D):
        at.takes(peer)
    assert isinstance(at.trickles(D, KIND_CONTRIBUTION, 2 * LIMIT_S), Waiting)
