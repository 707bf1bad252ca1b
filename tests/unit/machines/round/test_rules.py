"""Rules of protocol/06-rounds.md that were told in words only: one test each, named after the rule."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.exchange.facts import PassPrepared, Reduced
from dilocoxd.machines.exchange.orders import OrderPass, OrderReduce
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round.inputs import (
    BranchAdopted,
    EntryApplied,
    EntryPersisted,
    Event,
    LeaveRequested,
    PeersChanged,
    PhaseOffered,
    RecoveryFailed,
)
from dilocoxd.machines.round.outputs import ApplyEntry, LeaveFinished, PersistEntry, ReportPeer, Send, StartRecovery
from dilocoxd.wire.entry import SignedVote
from dilocoxd.wire.messages import Abandon, Accept, Committed, Leaving, Lock, Propose, ProposeCommit, Ready, Vote
from tests.unit.machines.round.test_waiting import (
    GENESIS,
    HASHES,
    LIMITS,
    ME,
    SIGNED,
    STATE,
    B,
    C,
    Desk,
    contribution,
    members,
    ready,
)

OTHER_HEAD = Digest(b"o" * 32)


def proposal_of(*peers: PeerId, attempt: int = 0, observers: tuple[PeerId, ...] = ()) -> Propose:
    return Propose(
        round=RoundIndex(0), attempt=Attempt(attempt), parent=GENESIS, state_digest=STATE,
        contributions=tuple(contribution(p) for p in sorted(peers)), offers=(SIGNED,) * len(peers),
        observers=observers, owners=(0, len(peers) - 1),
        lowrank_r=0, next_lowrank_r=0, next_inner_steps=0, parent_voters=(), evidence=(),
    )  # fmt: skip


def reports(desk: Desk) -> list[str]:
    return [command.rule for _, command in desk.sent if isinstance(command, ReportPeer)]


def all_ready(desk: Desk, attempt: int) -> None:
    for peer in (B, C):
        desk.hears(peer, ready(contribution(peer), attempt=attempt))


# --- R4


def finishings(desk: Desk) -> list[tuple[PeerId, ProposeCommit]]:
    """What it asked others to finish, and whom."""
    sent = [(c.peer, c.message) for _, c in desk.sent if isinstance(c, Send)]
    return [(peer, message) for peer, message in sent if isinstance(message, ProposeCommit)]


def test_r4_who_coordinates_the_end_of_an_entry_that_it_did_not_vote_for_asks_again_who_does_not_vote() -> None:
    desk = Desk()
    lock = Lock(Attempt(0), OTHER_HEAD, (B, C), results_held=True)
    locked = {peer: replace(ready(contribution(peer), attempt=1), lock=lock) for peer in (B, C)}
    for peer in (B, C):
        desk.hears(peer, locked[peer])
    desk.runs(LIMITS.progress_timeout_s + 1.0)
    asked = finishings(desk)
    assert sorted(peer for peer, _ in asked) == sorted([B, C]), "we have not voted, and coordinate"
    desk.hears(B, Vote(RoundIndex(0), GENESIS, OTHER_HEAD, SignedVote(B, Attempt(1), 0, SIGNED)))
    desk.hears(B, locked[B])
    assert finishings(desk) == asked, "it has voted"
    desk.hears(C, locked[C])
    assert finishings(desk) == [*asked, (C, asked[0][1])], "its proposal was lost"


# --- R5


def test_r5_a_proposal_as_far_as_others_are_is_joined_by_who_comes_late() -> None:
    desk = Desk()
    far = LIMITS.attempt_jump_max + 10
    desk.hears(B, ready(contribution(B), attempt=LIMITS.attempt_jump_max))
    assert desk.machine.status.attempt == LIMITS.attempt_jump_max
    late = Desk()
    late.hears(B, replace(ready(contribution(B)), attempt=Attempt(far)))
    late.hears(C, proposal_of(B, C, attempt=far, observers=(ME,)))
    assert "attempt_jump" in reports(late), "nobody else was known to be that far when B said so"
    assert late.machine.status.attempt == far, "but C is the second one"


def test_r5_who_raises_attempts_is_not_waited_for_with_its_contribution() -> None:
    desk = Desk()
    desk.offers()
    attempt = 0
    for _ in range(5):
        attempt = int(desk.machine.status.attempt) + 1
        desk.hears(C, ready(contribution(C), attempt=attempt))
    assert desk.machine.status.attempt < attempt, "C is not followed any more"
    for _ in range(40):
        desk.hears(B, ready(contribution(B), attempt=int(desk.machine.status.attempt)))
        desk.runs(desk.now + 0.1)
    [(at, proposal)] = desk.proposals()[-1:]
    assert members(proposal) == {ME, B} and at < LIMITS.grace_max_s, "nor waited for until the grace is over"


# --- R8


def test_r8_a_proposal_of_an_attempt_that_we_left_keeps_us_from_nothing() -> None:
    desk = Desk()
    all_ready(desk, attempt=1)
    assert desk.machine.status.attempt == 1
    desk.hears(C, proposal_of(B, C, attempt=0))
    desk.offers()
    assert [int(proposal.attempt) for _, proposal in desk.proposals()] == [1]


def test_r8_a_proposal_of_our_attempt_that_leaves_us_out_is_waited_out() -> None:
    desk = Desk()
    all_ready(desk, attempt=1)
    desk.hears(C, proposal_of(B, C, attempt=1))
    desk.offers()
    assert not desk.proposals()


def test_r8_a_proposal_of_a_later_attempt_that_leaves_us_out_is_joined_and_waited_out() -> None:
    desk = Desk()
    all_ready(desk, attempt=0)
    desk.hears(C, proposal_of(B, C, attempt=1))
    assert desk.machine.status.attempt == 1, "R5: a later attempt that we see is joined"
    all_ready(desk, attempt=1)
    desk.offers()
    assert not desk.proposals()


# --- R12


def test_r12_who_went_to_recover_is_not_waited_for_in_that_attempt() -> None:
    desk = Desk()
    desk.offers()
    desk.hears(C, ready(None, attempt=0))
    desk.hears(B, ready(contribution(B), attempt=1))
    desk.hears(C, Abandon(RoundIndex(0), Attempt(1), "catching up: x", ()))
    desk.runs(LIMITS.grace_max_s + 1.0)
    [(_, proposal)] = desk.proposals()
    assert members(proposal) == {ME, B}


# --- R17


@pytest.mark.parametrize(("head", "is_handed_over"), [(GENESIS, True), (OTHER_HEAD, False)])
def test_r17_only_who_stands_on_our_head_has_our_last_entry(head: Digest, is_handed_over: bool) -> None:
    desk = Desk(height=3)
    desk.tell(PeersChanged((PeerView(B, True, True, RoundIndex(3), head),), is_training=True))
    desk.tell(LeaveRequested())
    assert any(isinstance(c, LeaveFinished) for _, c in desk.sent) == is_handed_over


def test_r17_any_ready_ends_a_goodbye() -> None:
    desk = Desk(height=3)
    desk.hears(C, Leaving(RoundIndex(3), "x"))
    desk.hears(C, Ready(RoundIndex(3), Attempt(0), OTHER_HEAD, STATE, None, None, None, 0))
    # Heartbeats of before it left: they say less.
    desk.tell(PeersChanged(tuple(PeerView(p, True, True, RoundIndex(2), GENESIS) for p in (B, C)), is_training=True))
    assert "stand elsewhere" in desk.machine.waiting_for, "its claim counts again"


# --- R10


class Contributor(Desk):
    """Contributes alone, B and C observe; its outer worker and its log answer at once."""

    def answers(self) -> None:
        while (order := self._next_order()) is not None:
            self.tell(order)

    def _next_order(self) -> Event | None:
        while self.sent:
            _, command = self.sent.pop(0)
            if isinstance(command, OrderReduce):
                place = (command.round, command.attempt, command.pass_index, command.segment)
                return Reduced(*place, Digest(bytes([command.segment + 1]) * 32))
            if isinstance(command, OrderPass):
                return PassPrepared(command.round, command.attempt, command.pass_index, ())
            if isinstance(command, PersistEntry):
                return EntryPersisted(command.signed.entry.round)
            if isinstance(command, ApplyEntry):
                return EntryApplied(command.round, STATE)
        return None

    def round_with(self, height: int, phase: int) -> None:
        """Up to its own vote, which completes the votes; B and C have said Ready."""
        head = self.machine.chain.head
        for peer in (B, C):
            self.hears(peer, Ready(RoundIndex(height), Attempt(0), head, STATE, None, None, None, 0))
        self.tell(PhaseOffered(replace(contribution(ME), phase=PhaseId(phase)), HASHES, SIGNED))
        self.runs(self.now + LIMITS.grace_max_s + 1.0)


def after_a_round_without_acceptance() -> Contributor:
    """B and C live, but did not accept: the round went on without that, and they are not waited for again."""
    desk = Contributor()
    desk.tell(PeersChanged(tuple(PeerView(p, True, False, RoundIndex(0), GENESIS) for p in (B, C)), is_training=True))
    desk.round_with(0, phase=0)
    desk.answers()
    assert desk.machine.status.state == "voting"
    desk.runs(desk.now + LIMITS.vote_timeout_s + 0.5)
    desk.answers()
    assert desk.machine.chain.height == 1
    return desk


def test_r10_who_never_accepts_is_waited_for_once() -> None:
    desk = after_a_round_without_acceptance()
    desk.round_with(1, phase=1)
    desk.answers()
    assert desk.machine.chain.height == 2


def test_r10_who_votes_in_another_group_stops_the_commit_also_if_it_never_accepts() -> None:
    desk = after_a_round_without_acceptance()
    desk.round_with(1, phase=1)
    assert desk.machine.status.state == "exchanging"
    desk.hears(C, Vote(RoundIndex(1), desk.machine.chain.head, OTHER_HEAD, SignedVote(C, Attempt(0), 0, SIGNED)))
    desk.answers()
    assert desk.machine.chain.height == 1 and desk.machine.status.attempt == 1, "two groups could commit"


def votes_beside_who_does_not_accept(desk: Contributor, attempt: int) -> None:
    """B has accepted, C has not; all votes are here."""
    desk.hears(B, Accept(RoundIndex(0), Attempt(attempt), ME))
    desk.answers()
    assert (desk.machine.status.state, desk.machine.status.attempt) == ("voting", attempt)


def observed_by_two() -> Contributor:
    desk = Contributor()
    desk.tell(PeersChanged(tuple(PeerView(p, True, False, RoundIndex(0), GENESIS) for p in (B, C)), is_training=True))
    return desk


def test_r10_who_is_left_out_of_the_round_and_goes_on_stops_it_for_the_vote_time_out_only() -> None:
    desk = observed_by_two()
    desk.hears(C, ready(None))
    for attempt in (1, 2, 3):
        desk.hears(C, Abandon(RoundIndex(0), Attempt(attempt), "x", ()))
    desk.round_with(0, phase=0)
    votes_beside_who_does_not_accept(desk, 0)
    desk.hears(C, ready(None, attempt=1))
    desk.runs(desk.now + LIMITS.vote_timeout_s - 0.5)
    desk.answers()
    assert desk.machine.chain.height == 0, "it may still accept"
    desk.runs(desk.now + 1.0)
    desk.answers()
    assert desk.machine.chain.height == 1, "waited for without end"


def test_r5_who_raises_attempts_is_not_waited_for_with_its_acceptance() -> None:
    desk = observed_by_two()
    desk.round_with(0, phase=0)
    for attempt in (1, 2, 3):
        assert desk.machine.status.state == "exchanging"
        desk.hears(C, ready(None, attempt=attempt))
        assert desk.machine.status.attempt == attempt, "it may commit something else there"
        desk.answers()
        desk.hears(B, ready(None, attempt=attempt))
        desk.runs(desk.now + 1.0)
    votes_beside_who_does_not_accept(desk, 3)
    desk.hears(C, ready(None, attempt=4))
    desk.answers()
    assert desk.machine.chain.height == 1


def test_r13_a_lock_that_we_hear_of_while_we_catch_up_in_vain_is_known() -> None:
    desk = Desk()
    desk.offers()
    desk.hears(B, Committed(RoundIndex(5), OTHER_HEAD))
    desk.runs(LIMITS.behind_grace_s + 0.5)
    assert desk.machine.status.state == "catching_up"
    lock = Lock(Attempt(0), OTHER_HEAD, (C,), results_held=True)
    desk.hears(C, replace(ready(contribution(C), attempt=1), lock=lock))
    desk.tell(RecoveryFailed("x", unconfirmed=(B,)))
    assert desk.machine.status.attempt == 1, "R5: seen while we caught up"
    desk.runs(desk.now + 2 * LIMITS.progress_timeout_s)
    assert not desk.proposals(), "a new group beside an entry that may be committed"


def test_r28_a_branch_that_the_operator_chose_is_looked_at_though_its_peers_are_doubted() -> None:
    desk = Desk()
    desk.hears(B, Committed(RoundIndex(5), OTHER_HEAD))
    desk.runs(LIMITS.behind_grace_s + 0.5)
    desk.tell(RecoveryFailed("x", unconfirmed=(B,)))
    assert desk.machine.status.unconfirmed == {B}
    desk.tell(BranchAdopted((B,)))
    asked = [command for _, command in desk.sent if isinstance(command, StartRecovery)]
    assert asked[-1].peers == (B,) and desk.machine.status.state == "catching_up"
    desk.tell(BranchAdopted((B,)))
    assert len([1 for _, command in desk.sent if isinstance(command, StartRecovery)]) == 2, "one at a time"
    desk.tell(RecoveryFailed("x"))
    desk.hears(B, Committed(RoundIndex(5), OTHER_HEAD))
    desk.runs(desk.now + LIMITS.recovery_retry_s + LIMITS.behind_grace_s + 0.5)
    assert desk.machine.status.state == "catching_up", "its claims count again at once"
