"""Rules of protocol/06-rounds.md that a reading line by line found broken in small things; no schedule had."""

from dataclasses import replace

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.peers.readiness import ABANDONED_MAX
from dilocoxd.machines.peers.record import PEERS_MAX, PeerRecords
from dilocoxd.machines.peers.tips import UNAVAILABLE_MAX, Tips, Vain
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round.inputs import LeaveRequested, PeersChanged, RecoveryFinished
from dilocoxd.machines.round.life import BLAMES_MAX
from dilocoxd.machines.round.outputs import Broadcast, KeptPromise, LeaveFinished, PersistPromise, Promise
from dilocoxd.machines.round.timers import READIES_HEARD
from dilocoxd.wire.entry import Entry
from dilocoxd.wire.messages import Abandon, Committed, Leaving
from tests.unit.machines.round.test_rules import OTHER_HEAD, reports
from tests.unit.machines.round.test_rules_after_faults import HIGH, high_desk, readies_of, said_at
from tests.unit.machines.round.test_waiting import (
    GENESIS,
    HASHES,
    LIMITS,
    ME,
    RUN,
    SIGNED,
    STATE,
    B,
    C,
    Desk,
    contribution,
    members,
    ready,
)

ZERO, FIRST = RoundIndex(0), Attempt(0)


def entry_of_ours() -> Entry:
    given = tuple(contribution(peer) for peer in sorted((ME, B)))
    return Entry(RUN, ZERO, GENESIS, STATE, given, HASHES, 0, 0, 0, (), ())


def chain_at(height: int) -> ChainView:
    heads = tuple(Digest(bytes([index + 1]) * 32) for index in range(height))
    return ChainView(RUN, RoundIndex(height), heads[-1] if heads else GENESIS, STATE, heads=heads)


# --- R3


def test_r3_the_first_word_after_a_restart_carries_the_lock_and_is_of_the_next_attempt() -> None:
    entry = entry_of_ours()
    promise = Promise(ZERO, GENESIS, Attempt(2), Attempt(1), entry, tuple(sorted((ME, B))), (SIGNED,) * 2)
    desk = Desk(kept=KeptPromise(promise, results_held=True))
    first, *_ = readies_of(desk)
    assert first.attempt == 3 and first.lock is not None and first.lock.attempt == 1 and first.lock.results_held
    written = [command for _, command in desk.sent if isinstance(command, PersistPromise)]
    assert [one.promise.attempt for one in written] == [3], "on disk before it is said"


def test_r3_what_was_promised_for_another_tip_binds_nobody_after_a_restart() -> None:
    elsewhere, voters = Digest(b"o" * 32), tuple(sorted((ME, B)))
    promise = Promise(ZERO, elsewhere, Attempt(2), Attempt(1), entry_of_ours(), voters, (SIGNED,) * 2)
    desk = Desk(kept=KeptPromise(promise, results_held=True))
    first, *_ = readies_of(desk)
    assert first.attempt == FIRST and first.lock is None


# --- R5


def test_r5_what_is_said_of_an_attempt_that_nobody_can_be_in_counts_for_nothing() -> None:
    desk = Desk()
    far = Attempt(LIMITS.attempt_jump_max + 1)
    desk.hears(B, ready(contribution(B)))
    desk.hears(C, ready(contribution(C)))
    desk.hears(C, Abandon(ZERO, far, "x", (B,)))
    height = desk.machine.height
    assert "attempt_jump" in reports(desk)
    assert not height.book.conflicts.pairs(ZERO) and height.words.left(C) is None
    desk.hears(B, Abandon(ZERO, FIRST, "x", (C,)))
    assert height.book.conflicts.pairs(ZERO) == {(B, C)}, "that of a real attempt does"


# --- R9


def test_r9_who_stands_on_the_branch_that_recovery_left_counts_once_it_says_so_again() -> None:
    desk = Desk(height=1)
    on_it = said_at(1, GENESIS)
    for peer in (B, C):
        desk.hears(peer, on_it)
    desk.hears(B, Committed(RoundIndex(2), OTHER_HEAD))
    desk.runs(desk.now + LIMITS.behind_grace_s + 0.1)
    assert desk.machine.status.state == "catching_up"
    desk.tell(RecoveryFinished(replace(chain_at(3), head=OTHER_HEAD), None))
    assert "stand elsewhere" not in desk.machine.waiting_for, "C may be on its way"
    desk.hears(C, on_it)
    assert f"{C} stand elsewhere" in desk.machine.waiting_for


# --- R12


def test_r12_who_catches_up_is_not_waited_for_though_none_of_its_words_arrived() -> None:
    desk = Desk()
    desk.hears(B, ready(contribution(B)))
    desk.hears(C, Abandon(ZERO, FIRST, "catching up", ()))
    desk.offers()
    desk.runs(LIMITS.grace_max_s)
    [(_, proposal)] = desk.proposals()
    assert members(proposal) == {ME, B}, "C is at our head by its heartbeat, and said that it leaves the attempt"


def test_r12_who_blames_peers_that_do_not_exist_leaves_room_for_the_complaints_of_others() -> None:
    desk = Desk()
    for peer in (B, C):
        desk.hears(peer, ready(contribution(peer)))
    for batch in range(PEERS_MAX // BLAMES_MAX + 1):
        desk.hears(C, Abandon(ZERO, FIRST, "x", tuple(PeerId(f"n{batch}-{one}") for one in range(BLAMES_MAX))))
    desk.hears(B, Abandon(ZERO, FIRST, "x", (C,)))
    conflicts = desk.machine.height.book.conflicts
    assert conflicts.pairs(ZERO) == {(B, C)} and len(conflicts.until) == 1, "only of peers that membership knows"


def test_r12_what_is_given_up_on_another_branch_leaves_nobody_out_here() -> None:
    desk = Desk()
    for attempt in range(ABANDONED_MAX):
        desk.hears(C, Abandon(ZERO, Attempt(attempt), "x", ()))
    desk.hears(C, ready(contribution(C)))
    assert not desk.machine.height.is_left_out(C) and desk.machine.height.words.is_in(C, FIRST)


# --- R6


def newcomer_that_knows(*known: PeerId) -> Desk:
    """We have just started and offer nothing; these offer."""
    desk = Desk()
    desk.tell(PeersChanged(tuple(PeerView(one, True, True, ZERO, GENESIS) for one in known), is_training=False))
    for one in known:
        desk.hears(one, ready(contribution(one)))
    return desk


def test_r6_newcomer_that_knows_one_who_offers_hears_the_others_first() -> None:
    desk, acquainted = newcomer_that_knows(B), READIES_HEARD * LIMITS.ready_repeat_s
    desk.runs(acquainted - 0.1)
    assert not desk.proposals() and "just started" in desk.machine.waiting_for
    desk.runs(acquainted + 0.1)
    [(_, proposal)] = desk.proposals()
    assert [one.peer for one in proposal.contributions] == [B]


def test_r6_newcomer_that_knows_two_who_offer_proposes_them_at_once() -> None:
    [(at, _)] = newcomer_that_knows(B, C).proposals()
    assert at == 0.0


def test_r6_newcomer_that_offers_something_itself_waits_for_nobody_else() -> None:
    desk = newcomer_that_knows()
    desk.offers()
    assert desk.machine.status.state != "gathering", "its own group, of itself alone"


# --- R17


def leaving_desk() -> Desk:
    """We stand at height 3, both others say that they are further down, and we are asked to leave."""
    desk = high_desk()
    for peer in (B, C):
        desk.hears(peer, said_at(0, OTHER_HEAD))
    desk.tell(LeaveRequested())
    desk.runs(desk.now + LIMITS.leave_timeout_s / 2)
    return desk


def has_left(desk: Desk) -> bool:
    return any(isinstance(command, LeaveFinished) for _, command in desk.sent)


def test_r17_who_leaves_stays_until_another_one_has_its_last_entry() -> None:
    desk = leaving_desk()
    assert not has_left(desk), "what we committed last would leave with us"
    desk.hears(B, said_at(HIGH, GENESIS))
    assert has_left(desk)
    said = [command.message for _, command in desk.sent if isinstance(command, Broadcast)]
    assert isinstance(said[-1], Leaving)


def test_r17_who_leaves_stays_at_most_for_the_leave_time_out_and_not_at_all_when_it_is_alone() -> None:
    desk = leaving_desk()
    desk.runs(desk.now + LIMITS.leave_timeout_s)
    assert has_left(desk)
    alone = Desk(height=HIGH)
    alone.tell(PeersChanged((), is_training=True))
    alone.tell(LeaveRequested())
    assert has_left(alone)


def test_r17_what_a_peer_had_before_it_was_gone_does_not_let_us_leave() -> None:
    """It is back, but perhaps from a wiped disk (R19.6): only its own new word tells that our last entry is there."""
    desk = high_desk()
    desk.hears(B, said_at(HIGH, GENESIS))
    for is_live in (False, True):
        views = (PeerView(B, is_live, False, ZERO, OTHER_HEAD),)
        desk.tell(PeersChanged(views, is_training=True))
    desk.tell(LeaveRequested())
    assert not has_left(desk)
    desk.hears(B, said_at(HIGH, GENESIS))
    assert has_left(desk)


# --- R22


def test_r22_a_branch_that_is_never_to_be_had_is_not_excused_by_what_came_from_others() -> None:
    records = PeerRecords()
    tips, now = Tips(LIMITS, records), Monotonic(10.0)
    for height in range(UNAVAILABLE_MAX):
        tips.hear(chain_at(height), C, RoundIndex(90), OTHER_HEAD, now)
        asked = tips.claims
        tips.finished(chain_at(height + 1), asked, now, Vain((C,)), has_moved=True)
    assert tips.unconfirmed == {C} and not tips.claims, "B moved us each time, and of C nothing came"


def test_r22_a_branch_that_comes_in_parts_is_waited_for_whatever_failed_before() -> None:
    records = PeerRecords()
    tips, now = Tips(LIMITS, records), Monotonic(10.0)
    for height in range(2 * UNAVAILABLE_MAX):
        tips.hear(chain_at(height), C, RoundIndex(90), OTHER_HEAD, now)
        has_part = height % (UNAVAILABLE_MAX - 1) == UNAVAILABLE_MAX - 2
        tips.finished(
            chain_at(height + 1), tips.claims, now, Vain((C,), in_part=C if has_part else None), has_moved=True
        )
    assert not tips.unconfirmed and list(tips.claims) == [C]
