"""Who is waited for, and until when: R6 (left out until it answers) and R18 (who stood still moves its time-outs)."""

from collections.abc import Iterable
from itertools import combinations

import pytest

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import Ourselves, PayloadShape, RoundLimits, VoteKeys
from dilocoxd.machines.peers.pace import Pace
from dilocoxd.machines.peers.record import PeerRecords
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round.grouping import coordinator_order
from dilocoxd.machines.round.inputs import (
    DeadlineReached,
    Event,
    LeaveRequested,
    MessageReceived,
    PeersChanged,
    PhaseOffered,
    RoundMessage,
    Started,
)
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.machines.round.outputs import Broadcast, Command, KeptPromise, LeaveFinished, Send, StartRecovery
from dilocoxd.wire.entry import Contribution, Signature, SignedVote
from dilocoxd.wire.messages import Abandon, Accept, Committed, Propose, Ready

RUN = RunId("r")
GENESIS, STATE = Digest(b"g" * 32), Digest(b"d" * 32)
SIGNED = Signature(b"k", b"s")
HASHES = (Digest(b"1" * 32), Digest(b"2" * 32))
LIMITS = RoundLimits(grace_max_s=4.0)
STEP_S = 0.25
"""The machine is woken at its deadlines and at least so often."""
MOVED_S = 1e-6
"""Rounding of sums of times."""


def trio_led_for(num_attempts: int) -> tuple[PeerId, PeerId, PeerId]:
    """Three peers of which the first coordinates the first attempts of round 0, and the first one of round 1."""
    places = [*((RoundIndex(0), Attempt(a)) for a in range(num_attempts)), (RoundIndex(1), Attempt(0))]
    for three in combinations([PeerId(f"p{index}") for index in range(24)], 3):
        orders = [coordinator_order(RUN, *place, three) for place in places]
        if len({order[0] for order in orders}) == 1:
            first = orders[0][0]
            others = [peer for peer in three if peer != first]
            return first, others[0], others[1]
    raise AssertionError("no such trio")


ME, B, C = trio_led_for(5)


def contribution(peer: PeerId) -> Contribution:
    return Contribution(peer, PhaseId(0), RoundIndex(0), 5, 10, bytes(32))


def ready(offered: Contribution | None, attempt: int = 0) -> Ready:
    return Ready(
        RoundIndex(0), Attempt(attempt), GENESIS, STATE, offered, SIGNED if offered is not None else None, None, 0
    )


class Desk:
    """One machine and its clock."""

    def __init__(self, limits: RoundLimits = LIMITS, height: int = 0, kept: KeptPromise | None = None) -> None:
        keys = VoteKeys(GENESIS, lambda what: SignedVote(ME, what.attempt, 0, SIGNED), lambda *given: True)
        chain = ChainView(RUN, RoundIndex(height), GENESIS, STATE, heads=(GENESIS,) if height else ())
        self.machine = RoundMachine(Ourselves(ME, RUN, GENESIS, keys), PayloadShape(1, (10, 10)), limits, chain, kept)
        self.now = 0.0
        self.sent: list[tuple[float, Command]] = []
        self.tell(Started())
        views = [PeerView(peer, True, True, RoundIndex(height), GENESIS) for peer in (B, C)]
        self.tell(PeersChanged(tuple(views), is_training=True))

    def tell(self, event: Event) -> None:
        self.sent += [(self.now, command) for command in self.machine.handle(event, now=Monotonic(self.now))]
        self.machine.check()

    def hears(self, peer: PeerId, message: RoundMessage) -> None:
        self.tell(MessageReceived(peer, message))

    def offers(self) -> None:
        self.tell(PhaseOffered(contribution(ME), HASHES, SIGNED))

    def runs(self, until: float) -> None:
        while self.now < until:
            deadline = self.machine.next_deadline()
            self.now = min(until, self.now + STEP_S, deadline if deadline is not None else until)
            self.tell(DeadlineReached())

    def stands_still(self, seconds: float) -> None:
        """Not running; on waking it is told first that its deadline has passed, as if its inbox were empty."""
        self.now += seconds
        self.tell(DeadlineReached())

    def proposals(self) -> list[tuple[float, Propose]]:
        """The first of each attempt, and when it was made."""
        found: dict[Attempt, tuple[float, Propose]] = {}
        for at, command in self.sent:
            if isinstance(command, Send) and isinstance(command.message, Propose):
                found.setdefault(command.message.attempt, (at, command.message))
        return list(found.values())

    def abandons(self) -> list[float]:
        return [at for at, c in self.sent if isinstance(c, Broadcast) and isinstance(c.message, Abandon)]


def members(propose: Propose) -> set[PeerId]:
    return {*(c.peer for c in propose.contributions), *propose.observers}


# --- R6


def silent_for_the_progress_timeout() -> Desk:
    """C says nothing in attempt 0, and is left out of its proposal after the progress time-out."""
    desk = Desk()
    desk.hears(B, ready(contribution(B)))
    desk.offers()
    desk.runs(LIMITS.progress_timeout_s + 1.0)
    [(at, proposal)] = desk.proposals()
    assert at >= LIMITS.progress_timeout_s and members(proposal) == {ME, B}
    return desk


def next_proposal_after(desk: Desk) -> tuple[float, set[PeerId]]:
    """Attempt 0 fails, B joins the next one at once and C does not: (how long C is waited for, members)."""
    desk.hears(B, Abandon(RoundIndex(0), Attempt(0), "x", ()))
    desk.hears(B, ready(contribution(B), attempt=1))
    started = desk.now
    desk.runs(started + 2 * LIMITS.progress_timeout_s)
    at, proposal = desk.proposals()[1]
    return at - started, members(proposal)


def test_who_was_silent_is_not_waited_for_again() -> None:
    waited, group = next_proposal_after(silent_for_the_progress_timeout())
    assert waited < LIMITS.progress_timeout_s / 2 and group == {ME, B}


@pytest.mark.parametrize(
    "answer",
    [ready(contribution(C)), ready(None), Accept(RoundIndex(0), Attempt(0), ME)],
    ids=["a contribution", "nothing to offer", "an acceptance"],
)
def test_who_was_silent_and_has_answered_is_waited_for_again(answer: RoundMessage) -> None:
    desk = silent_for_the_progress_timeout()
    desk.hears(C, answer)
    waited, _ = next_proposal_after(desk)
    assert waited >= LIMITS.progress_timeout_s


@pytest.mark.parametrize(
    "noise",
    [Accept(RoundIndex(7), Attempt(0), ME), Abandon(RoundIndex(0), Attempt(0), "x", ())],
    ids=["about another round", "about giving up"],
)
def test_what_is_no_answer_to_our_attempt_changes_nothing(noise: RoundMessage) -> None:
    desk = silent_for_the_progress_timeout()
    desk.hears(C, noise)
    waited, _ = next_proposal_after(desk)
    assert waited < LIMITS.progress_timeout_s / 2


def test_an_answer_in_an_attempt_that_we_left_changes_nothing() -> None:
    desk = Desk()
    desk.hears(B, ready(contribution(B), attempt=1))
    desk.offers()
    desk.runs(LIMITS.progress_timeout_s + 1.0)
    assert len(desk.proposals()) == 1
    desk.hears(C, ready(contribution(C), attempt=0))
    desk.hears(B, Abandon(RoundIndex(0), Attempt(1), "x", ()))
    desk.hears(B, ready(contribution(B), attempt=2))
    started = desk.now
    desk.runs(started + LIMITS.progress_timeout_s / 2)
    assert [int(proposal.attempt) for _, proposal in desk.proposals()] == [1, 2]


# --- R18


def with_grace(readies: Iterable[tuple[PeerId, Ready]]) -> Desk:
    """Everybody has joined, C has nothing yet; the grace runs."""
    desk = Desk()
    for peer, message in readies:
        desk.hears(peer, message)
    desk.offers()
    desk.runs(1.0)
    assert not desk.proposals()
    return desk


@pytest.mark.parametrize("still_s", [1.5, 5.0, 60.0])
def test_the_grace_goes_on_after_standing_still(still_s: float) -> None:
    desk = with_grace([(B, ready(contribution(B))), (C, ready(None))])
    desk.stands_still(still_s)
    assert not desk.proposals(), "proposed on waking, without having heard the others"
    desk.hears(C, ready(contribution(C)))
    [(_, proposal)] = desk.proposals()
    assert {c.peer for c in proposal.contributions} == {ME, B, C}


def test_the_grace_is_over_some_time_after_standing_still() -> None:
    desk = with_grace([(B, ready(contribution(B))), (C, ready(None))])
    desk.stands_still(60.0)
    desk.runs(desk.now + LIMITS.grace_max_s + 1.0)
    [(_, proposal)] = desk.proposals()
    assert {c.peer for c in proposal.contributions} == {ME, B} and proposal.observers == (C,)


@pytest.mark.parametrize("ran_until", [LIMITS.progress_timeout_s - 0.1, 15.0, 3.0])
def test_who_has_not_joined_is_waited_for_after_standing_still(ran_until: float) -> None:
    desk = Desk()
    desk.hears(B, ready(contribution(B)))
    desk.offers()
    desk.runs(ran_until)
    desk.stands_still(40.0)
    desk.hears(B, ready(contribution(B)))
    assert not desk.proposals(), "the first message of many was judged without the others"
    desk.hears(C, ready(contribution(C)))
    [(_, proposal)] = desk.proposals()
    assert members(proposal) == {ME, B, C}


def proposed_by_others() -> Propose:
    """Of B and C; we observe."""
    return Propose(
        round=RoundIndex(0), attempt=Attempt(0), parent=GENESIS, state_digest=STATE,
        contributions=tuple(contribution(p) for p in sorted((B, C))), offers=(SIGNED, SIGNED),
        observers=(ME,), owners=(0, 1),
        lowrank_r=0, next_lowrank_r=0, next_inner_steps=0, parent_voters=(), evidence=(),
    )  # fmt: skip


def test_the_patience_for_the_first_coordinator_goes_on_after_standing_still() -> None:
    desk = Desk()
    desk.hears(B, ready(contribution(B)))
    desk.hears(C, proposed_by_others())
    desk.runs(LIMITS.coordinator_patience_s / 2 - 0.5)
    assert desk.machine.status.state == "gathering"
    desk.stands_still(30.0)
    assert desk.machine.status.state == "gathering", "took up a proposal before the better one could be read"
    desk.runs(desk.now + LIMITS.coordinator_patience_s / 2 + 1.0)
    assert desk.machine.status.state == "exchanging"


def exchanging() -> Desk:
    """Of a group of three; nothing moves any more."""
    desk = with_grace([(B, ready(contribution(B))), (C, ready(None))])
    desk.hears(C, ready(contribution(C)))
    assert desk.machine.status.state == "exchanging"
    return desk


def test_a_leaving_peer_has_its_time_to_hand_over_after_standing_still() -> None:
    desk = exchanging()
    desk.tell(LeaveRequested())
    desk.runs(desk.now + 1.0)
    desk.stands_still(LIMITS.leave_timeout_s + 5.0)
    assert not any(isinstance(c, LeaveFinished) for _, c in desk.sent)


def test_r17_who_only_observes_leaves_at_once_and_who_contributes_is_needed() -> None:
    observing, contributing = Desk(), exchanging()
    observing.hears(B, ready(contribution(B)))
    observing.hears(C, proposed_by_others())
    observing.runs(LIMITS.coordinator_patience_s)
    for desk, is_over in ((observing, True), (contributing, False)):
        assert desk.machine.status.state == "exchanging"
        desk.tell(LeaveRequested())
        assert any(isinstance(c, LeaveFinished) for _, c in desk.sent) == is_over


def test_a_claim_is_looked_at_after_a_grace_that_goes_on_after_standing_still() -> None:
    desk = with_grace([(B, ready(contribution(B))), (C, ready(None))])
    desk.hears(C, Committed(RoundIndex(0), Digest(b"x" * 32)))
    desk.stands_still(20.0)
    assert not any(isinstance(c, StartRecovery) for _, c in desk.sent)
    desk.runs(desk.now + LIMITS.behind_grace_s + 1.5)
    assert any(isinstance(c, StartRecovery) for _, c in desk.sent)


def test_no_attempt_is_given_up_for_what_was_not_heard_while_standing_still() -> None:
    running = exchanging()
    running.runs(running.now + 2 * LIMITS.progress_timeout_s)
    gives_up_at = running.abandons()[0]
    still = exchanging()
    still.runs(gives_up_at - 0.1)
    still.stands_still(60.0)
    assert still.machine.status.state == "exchanging" and not still.abandons()
    still.runs(still.now + 2.0)
    assert still.abandons()


def test_standing_still_is_no_phase_time_of_others() -> None:
    records = PeerRecords()
    pace = Pace(records)
    pace.contributed(B, 0, Monotonic(0.0))
    pace.contributed(B, 1, Monotonic(10.0))
    pace.stood_still(60.0)
    pace.contributed(B, 2, Monotonic(80.0))
    assert records[B].phases.seconds == pytest.approx(10.0, abs=MOVED_S), "10 s lies between 10 s and 70 s"
    pace.stood_still(1.0)
    pace.contributed(B, 3, Monotonic(120.0))
    assert records[B].phases.seconds == pytest.approx((10.0 + 39.0) / 2, abs=MOVED_S), "the least that it can have been"
