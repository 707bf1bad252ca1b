"""Rules of protocol/06-rounds.md as faults of others try them: who falls back, leaves, decides elsewhere, proves a lock
void. Each was broken once; schedules of the simulator found them."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.exchange.facts import SegmentReceived
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT, SegmentKey
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round.inputs import EntryPersisted, PeersChanged, RecoveryFinished
from dilocoxd.machines.round.outputs import (
    Broadcast,
    ExtendRecovery,
    KeptPromise,
    PersistEntry,
    PersistPromise,
    Send,
    StartRecovery,
)
from dilocoxd.wire.messages import Abandon, Accept, Committed, Leaving, ProposeCommit, Ready
from tests.unit.machines.round.test_rules import OTHER_HEAD, Contributor, proposal_of
from tests.unit.machines.round.test_waiting import (
    GENESIS,
    LIMITS,
    ME,
    STATE,
    B,
    C,
    Desk,
    contribution,
    members,
    next_proposal_after,
    ready,
)
from tests.unit.machines.round_world import chain_at

HIGH = 3


def high_desk() -> Desk:
    """We stand at height 3, and so do B and C by their heartbeats."""
    desk = Desk(height=HIGH)
    desk.runs(LIMITS.behind_grace_s + 0.5)
    return desk


def said_at(height: int, head: Digest, attempt: int = 0) -> Ready:
    return Ready(RoundIndex(height), Attempt(attempt), head, STATE, None, None, None, 0)


# --- R6


def test_r6_who_says_that_it_stands_further_down_is_at_our_head_no_more_whatever_heartbeats_said() -> None:
    desk = high_desk()
    desk.hears(B, said_at(HIGH, GENESIS))
    desk.hears(C, said_at(HIGH, GENESIS))
    desk.runs(desk.now + LIMITS.behind_grace_s + 0.5)
    assert C in desk.machine.height.candidates()
    desk.hears(C, said_at(0, OTHER_HEAD))
    views = tuple(PeerView(p, True, True, RoundIndex(HIGH), GENESIS) for p in (B, C))
    desk.tell(PeersChanged(views, is_training=True))
    assert C not in desk.machine.height.candidates(), "the heartbeat is the one of before"
    moved = replace(views[1], height=RoundIndex(HIGH - 1))
    desk.tell(PeersChanged((views[0], moved), is_training=True))
    desk.tell(PeersChanged(views, is_training=True))
    assert C in desk.machine.height.candidates(), "this one is newer than its word"


def test_r6_a_word_from_further_down_that_was_overtaken_takes_nothing_back() -> None:
    desk = high_desk()
    desk.hears(C, said_at(HIGH, GENESIS))
    desk.hears(C, said_at(0, OTHER_HEAD))
    assert C in desk.machine.height.candidates()


def test_r6_who_was_silent_and_comes_back_from_further_down_is_waited_for_again() -> None:
    desk = Desk()
    desk.hears(B, ready(contribution(B)))
    desk.offers()
    desk.runs(LIMITS.progress_timeout_s + 1.0)
    assert desk.machine.height.book.records[C].has_missed_join
    waited, _ = next_proposal_after(desk)
    assert waited < LIMITS.progress_timeout_s / 2
    high = high_desk()
    high.machine.height.book.waited_in_vain(joining=[C])
    high.hears(C, said_at(0, OTHER_HEAD))
    assert not high.machine.height.book.records[C].has_missed_join, "it answers, and may arrive here soon"


def test_r6_who_was_silent_and_speaks_from_further_up_or_another_branch_is_waited_for_where_we_meet() -> None:
    """Seed 1025396: p1 was cut off and lagged; p2, ahead, had said Ready again before p1 caught up with it."""
    for height, head in ((HIGH + 1, OTHER_HEAD), (HIGH, OTHER_HEAD)):
        high = high_desk()
        high.machine.height.book.waited_in_vain(joining=[C])
        high.hears(C, said_at(height, head))
        assert not high.machine.height.book.records[C].has_missed_join


def jumps_to(height: int) -> Desk:
    """At height 1 it hears that B stands at height 2, then at 3, and catches up for longer than words of before are
    taken for overtaken; it arrives at this height of the chain that B stands on."""
    desk = Desk(height=1)
    desk.hears(B, said_at(2, Digest(b"2" * 32)))
    desk.hears(B, said_at(3, OTHER_HEAD))
    desk.runs(desk.now + LIMITS.behind_grace_s + 0.1)
    assert desk.machine.status.state == "catching_up"
    heads = {2: Digest(b"2" * 32), 3: OTHER_HEAD}
    desk.tell(RecoveryFinished(replace(chain_at(height), head=heads[height], state_digest=STATE), None, in_part=B))
    return desk


def test_r6_an_early_word_of_a_height_that_recovery_skipped_is_none_from_further_down() -> None:
    """Seed 1010847: p3 proposed without p0, whose next words, of heights further up, it had heard as well."""
    desk = jumps_to(3)
    assert desk.machine.height.book.tips.here() == [B]
    assert B in desk.machine.height.candidates() and not desk.machine.height.buffered


def test_r9_an_early_word_does_not_take_back_what_its_peer_said_after_it() -> None:
    desk = jumps_to(2)
    assert desk.machine.height.words.ready(B) is None
    assert desk.machine.status.state == "catching_up", "B is at height 3, and followed there"


# --- R17


def test_r17_what_was_said_early_by_who_left_meanwhile_does_not_bring_it_back() -> None:
    desk = Contributor()
    desk.round_with(0, phase=0)
    for peer in (B, C):
        desk.hears(peer, Accept(RoundIndex(0), Attempt(0), ME))
    while (order := desk._next_order()) is not None:
        if isinstance(order, EntryPersisted):
            desk.hears(C, said_at(1, OTHER_HEAD))
            desk.hears(C, Leaving(RoundIndex(1), "leaves on request"))
        desk.tell(order)
    assert desk.machine.chain.height == 1
    assert C not in desk.machine.height.book.live()


@pytest.mark.parametrize("is_dead", [False, True])
def test_r17_what_was_said_early_does_not_outlive_the_disk_of_who_said_it(is_dead: bool) -> None:
    """Seed 1201261: p0 left with an entry that p1 had lost: of the height behind it p1 had spoken before."""
    desk = high_desk()
    desk.hears(C, said_at(HIGH + 1, OTHER_HEAD))
    assert C in desk.machine.height.buffered
    if is_dead:
        views = tuple(PeerView(p, p == B, True, RoundIndex(HIGH), GENESIS) for p in (B, C))
        desk.tell(PeersChanged(views, is_training=True))
    else:
        desk.runs(desk.now + LIMITS.behind_grace_s + 0.1)
        desk.hears(C, said_at(0, OTHER_HEAD))
    assert C not in desk.machine.height.buffered


# --- R19


def test_r19_a_heartbeat_of_before_does_not_take_back_what_its_peer_says_since() -> None:
    desk = high_desk()
    views = tuple(PeerView(p, True, True, RoundIndex(HIGH), GENESIS) for p in (B, C))
    desk.hears(C, Committed(RoundIndex(HIGH - 1), OTHER_HEAD))
    desk.tell(PeersChanged(views, is_training=True))
    assert "stand elsewhere" in desk.machine.waiting_for
    desk.hears(C, said_at(HIGH, GENESIS))
    assert "stand elsewhere" not in desk.machine.waiting_for, "its own word does"


@pytest.mark.parametrize(("is_old", "waits_s"), [(True, 0.0), (False, LIMITS.behind_grace_s)])
def test_r19_what_was_known_before_the_process_took_part_needs_no_grace(is_old: bool, waits_s: float) -> None:
    desk = high_desk()
    views = (PeerView(B, True, True, RoundIndex(HIGH + 2), OTHER_HEAD),)
    began = desk.now
    desk.tell(PeersChanged(views, is_training=False, is_old=is_old))
    desk.runs(began + 2 * LIMITS.behind_grace_s)
    [started_at] = [at for at, command in desk.sent if isinstance(command, StartRecovery)]
    assert started_at - began == pytest.approx(waits_s, abs=0.01)


def test_r22_who_claims_something_since_a_recovery_began_is_asked_too() -> None:
    desk = high_desk()
    ahead = [PeerView(p, True, True, RoundIndex(HIGH + 2), OTHER_HEAD) for p in (B, C)]
    desk.tell(PeersChanged((ahead[0],), is_training=False, is_old=True))
    assert desk.machine.status.state == "catching_up"
    for _ in range(2):
        desk.tell(PeersChanged(tuple(ahead), is_training=False))
    orders = [command for _, command in desk.sent if isinstance(command, StartRecovery | ExtendRecovery)]
    assert [order.peers for order in orders] == [(B,), (C,)], "each once"


@pytest.mark.parametrize("is_known", [True, False])
def test_r22_who_was_named_when_the_recovery_was_over_was_not_looked_at(is_known: bool) -> None:
    """Its end and the word of who came lately cross each other."""
    desk = high_desk()
    ahead = [PeerView(p, True, True, RoundIndex(HIGH + 2), OTHER_HEAD) for p in (B, C)]
    desk.tell(PeersChanged((ahead[0],), is_training=False, is_old=True))
    desk.tell(PeersChanged(tuple(ahead), is_training=False))
    chain = replace(chain_at(HIGH + 1), head=Digest(b"n" * 32))
    desk.tell(RecoveryFinished(chain, None, added=(C,) if is_known else ()))
    assert (C in desk.machine.height.book.tips.claims) is not is_known, "R22.2"


def test_r22_while_most_stand_with_us_nobody_is_asked_who_claims_something_later() -> None:
    desk = high_desk()
    here = [PeerView(PeerId(p), True, True, RoundIndex(HIGH), GENESIS) for p in ("F", "G")]
    ahead = [PeerView(p, True, True, RoundIndex(HIGH + 2), OTHER_HEAD) for p in (B, C)]
    for peer in here:
        desk.hears(peer.peer, said_at(HIGH, GENESIS))
    desk.tell(PeersChanged((*here, ahead[0]), is_training=False, is_old=True))
    desk.tell(PeersChanged((*here, *ahead), is_training=False))
    orders = [command for _, command in desk.sent if isinstance(command, StartRecovery | ExtendRecovery)]
    assert [order.peers for order in orders] == [(B,)]


def voted_with_nobody_accepting(claimed: Digest | None) -> Contributor:
    """All votes are here; B and C observe and have not accepted. B says what it has committed, if anything."""
    desk = Contributor()
    views = tuple(PeerView(p, True, False, RoundIndex(0), GENESIS) for p in (B, C))
    desk.tell(PeersChanged(views, is_training=True))
    desk.round_with(0, phase=0)
    desk.answers()
    assert desk.machine.status.state == "voting"
    desk.runs(desk.now + LIMITS.vote_timeout_s - LIMITS.behind_grace_s / 2)
    if claimed is not None:
        desk.hears(B, Committed(RoundIndex(0), claimed))
    desk.runs(desk.now + LIMITS.behind_grace_s / 2 + 0.1)
    return desk


def is_committing(desk: Desk) -> bool:
    return any(isinstance(command, PersistEntry) for _, command in desk.sent)


def test_r19_nothing_is_committed_while_somebody_says_that_another_entry_was() -> None:
    desk = voted_with_nobody_accepting(OTHER_HEAD)
    assert desk.machine.status.state == "voting" and not is_committing(desk), "a fork that we know of"
    desk.runs(desk.now + LIMITS.behind_grace_s)
    assert desk.machine.status.state == "catching_up"


def test_r19_a_claim_of_the_very_entry_that_is_voted_on_keeps_nobody_from_committing_it() -> None:
    assert is_committing(voted_with_nobody_accepting(None))
    voted_on = voted_with_nobody_accepting(None).machine.height.attempt.voted_on
    assert voted_on is not None
    assert is_committing(voted_with_nobody_accepting(voted_on.entry_hash))


# --- R13


def readies_of(desk: Desk) -> Sequence[Ready]:
    said = [command.message for _, command in desk.sent if isinstance(command, Broadcast)]
    return [message for message in said if isinstance(message, Ready)]


def exchanged_with(desk: Contributor, *others: PeerId) -> None:
    """All their segments arrive."""
    for peer in others:
        for segment in (0, 1):
            attempt = desk.machine.status.attempt
            for kind, phase in ((KIND_CONTRIBUTION, PhaseId(0)), (KIND_RESULT, None)):
                key = SegmentKey(kind, RoundIndex(0), attempt, 0, segment, phase)
                desk.tell(SegmentReceived(peer, key, Digest(bytes([segment + 1]) * 32)))
            desk.answers()


def test_r13_a_lock_that_was_proved_void_is_not_kept_by_who_takes_part_in_another_entry() -> None:
    desk = Contributor(replace(LIMITS, has_majority_quorum=True))
    views = tuple(PeerView(p, True, p == B, RoundIndex(0), GENESIS) for p in (B, C))
    desk.tell(PeersChanged(views, is_training=True))
    for peer in (B, C):
        desk.hears(peer, ready(contribution(B) if peer == B else None))
    desk.offers()
    exchanged_with(desk, B)
    assert desk.machine.height.lock is not None, "we voted, B did not"
    desk.hears(B, ready(contribution(B), attempt=1))
    desk.hears(C, ready(None, attempt=1))
    assert desk.machine.status.attempt == 1 and readies_of(desk)[-1].lock is not None
    assert desk.machine.status.state == "exchanging", "B proved the lock void: a new group"
    desk.hears(B, Abandon(RoundIndex(0), Attempt(1), "x", ()))
    assert desk.machine.status.attempt == 2
    assert readies_of(desk)[-1].lock is None, "nobody else remembers the proof"
    desk.answers()  # the order of the attempt that was given up
    desk.tell(PeersChanged(views[1:], is_training=True))
    desk.hears(C, ready(None, attempt=2))
    desk.runs(desk.now + LIMITS.grace_max_s + 1.0)
    assert not any(isinstance(getattr(c, "message", None), ProposeCommit) for _, c in desk.sent)
    assert [members(p) for _, p in desk.proposals()][-1] == {ME, C}, "the round goes on without B"


# --- R8


def test_r8_what_is_accepted_as_an_observer_is_on_disk_before_it_is_said() -> None:
    desk = Desk()
    desk.hears(B, ready(contribution(B)))
    desk.hears(C, proposal_of(B, C, observers=(ME,)))
    desk.runs(LIMITS.coordinator_patience_s)
    kinds = [type(command.message if isinstance(command, Send) else command) for _, command in desk.sent]
    assert Accept in kinds and PersistPromise in kinds[: kinds.index(Accept)]


def test_r8_a_restarted_observer_takes_part_in_no_other_proposal_of_the_attempt_that_it_accepted() -> None:
    desk = Desk()
    desk.hears(B, ready(contribution(B)))
    desk.hears(C, proposal_of(B, C, observers=(ME,)))
    desk.runs(LIMITS.coordinator_patience_s)
    [kept] = [command.promise for _, command in desk.sent if isinstance(command, PersistPromise)]
    again = Desk(kept=KeptPromise(kept, results_held=False))
    assert again.machine.status.attempt == 1


def test_r8_one_peer_alone_that_says_that_a_round_goes_on_without_us_does_not_stop_us_for_ever() -> None:
    desk = Desk()
    desk.offers()
    alone_s = LIMITS.progress_timeout_s + LIMITS.vote_timeout_s
    while desk.now < 2 * alone_s and not desk.proposals():
        attempt = int(desk.machine.status.attempt)
        desk.hears(C, proposal_of(B, C, attempt=attempt))
        for peer in (B, C):
            desk.hears(peer, ready(contribution(peer), attempt=attempt))
        desk.runs(desk.now + 1.0)
    [(at, proposal)] = desk.proposals()
    assert members(proposal) == {ME, B, C}
    assert alone_s <= at < alone_s + 5.0, "it is believed once"


def test_r8_two_peers_that_say_that_a_round_goes_on_without_us_are_believed_as_long_as_they_say_so() -> None:
    desk = Desk()
    desk.offers()
    for _ in range(60):
        for peer in (B, C):
            desk.hears(peer, ready(contribution(peer)))
            desk.hears(peer, proposal_of(B, C))
        desk.runs(desk.now + 1.0)
    assert not desk.proposals() and desk.machine.status.attempt == 0
