"""Rules of protocol/06-rounds.md that a third reading found broken in small things; no schedule had."""

from dataclasses import replace

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.exchange.facts import SegmentReceived
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, SegmentKey
from dilocoxd.machines.round.attempt import RunningAttempt
from dilocoxd.machines.round.exchanging import look as look_at_results
from dilocoxd.machines.round.gathering import gathered_at, look
from dilocoxd.machines.round.grouping import proposal_problem
from dilocoxd.machines.round.joining import on_ready
from dilocoxd.machines.round.outcomes import EXCHANGING, GATHERING, GiveUp, Waiting
from dilocoxd.machines.round.proposals import on_proposal
from dilocoxd.wire.messages import ProposeCommit
from tests.unit.machines.round_world import (
    HASHES,
    LIMITS,
    ME,
    SHAPE,
    START,
    B,
    C,
    D,
    begin_exchange,
    chain_at,
    height_of,
    held_of,
    offer,
    process,
    proposal,
    ready,
    view,
)

PATIENT = Monotonic(START + LIMITS.coordinator_patience_s)


def test_r6_nobody_waits_for_a_contribution_that_no_entry_may_name() -> None:
    height = height_of(B)
    offer(height)
    said = ready(B)
    assert said.contribution is not None
    height.say(B, replace(said, contribution=replace(said.contribution, tokens=LIMITS.tokens_max + 1)), START)
    found = gathered_at(height)
    assert set(found.contributions) == {ME} and not found.awaited


def test_r8_who_is_not_live_leaves_nobody_out_of_a_locked_entry_that_is_finished() -> None:
    lock = held_of(B, C).on_wire
    for is_live in (True, False):
        height = height_of(B, C)
        height.book.see([view(B), view(C), *([view(D)] if is_live else [])], height.chain, START)
        height.attempt = RunningAttempt(Attempt(1), START)
        on_proposal(height, D, ProposeCommit(height.round, Attempt(1), lock, lock.voters), GATHERING, START)
        look(height, process(), PATIENT)
        assert height.attempt.is_left_out is is_live, f"live: {is_live}"


def test_r12_observer_whose_contributors_said_nothing_of_where_they_stand_has_the_progress_timeout() -> None:
    """Only who says that it is beyond the round is: one of which membership has never heard is not lost (R12.10)."""
    height = height_of(B, C)
    begin_exchange(height, B, C, observers=(ME,))
    height.book.see([], height.chain, START)
    quarter = Monotonic(START + LIMITS.progress_timeout_s / 4)
    assert isinstance(look_at_results(height, quarter), Waiting)
    for peer in (B, C):
        height.book.tips.hear(height.chain, peer, RoundIndex(5), Digest(b"5" * 32), START)
    assert isinstance(look_at_results(height, quarter), GiveUp), "now all of them have said so"


def test_r5_needed_peer_that_goes_on_ends_the_attempt_though_membership_has_not_heard_of_it() -> None:
    height = height_of(B, C)
    begin_exchange(height, ME, B, observers=(C,))
    height.book.see([], height.chain, START)
    found = on_ready(height, B, ready(B, attempt=1), EXCHANGING, START)
    assert isinstance(found, GiveUp) and "went on" in found.reason
    found = on_ready(height, C, ready(attempt=1), EXCHANGING, START)
    assert isinstance(found, GiveUp), "an observer that has not accepted may commit something else"
    height.book.see([view(B, is_live=False)], height.chain, START)
    assert on_ready(height, D, ready(attempt=1), EXCHANGING, START) is None, "nobody needs this one"


def test_r12_who_goes_on_just_before_it_would_be_blamed_is_blamed_and_who_gave_its_share_is_not() -> None:
    """Lab book of the simulator, 52."""
    height = height_of(B, C)
    told = proposal(ME, B, C)
    height.own.inbox.open(told.contributions, ME)
    exchange = begin_exchange(height, ME, B, C)
    half = Monotonic(START + LIMITS.progress_timeout_s / 2)

    def goes_on(peer: PeerId, now: Monotonic) -> set[PeerId]:
        found = on_ready(height, peer, ready(peer, attempt=1), EXCHANGING, now)
        assert isinstance(found, GiveUp) and not found.is_told
        return set(found.blames)

    assert not goes_on(B, Monotonic(half - 0.1)), "it may have a reason"
    assert goes_on(B, half) == {B, C}, "neither waits for anybody with its share"
    key = SegmentKey(KIND_CONTRIBUTION, height.round, height.attempt.index, 0, 0, told.contributions[1].phase)
    exchange.on_segment(SegmentReceived(B, key, HASHES[0]))
    assert not goes_on(B, half), "whoever gave its share has another reason"
    assert goes_on(C, half) == {C}


def test_r6_ready_from_a_branch_that_was_taken_back_is_an_answer() -> None:
    height = height_of(B, C)
    dead = Digest(b"d" * 32)
    height.book.reverts.bury([dead])
    height.book.waited_in_vain(joining=[C])
    on_ready(height, C, replace(ready(), round=RoundIndex(4), parent=dead), GATHERING, START)
    assert not height.book.records[C].has_missed_join, "it leaves that branch once it hears of it, and comes here"


def test_r7_proposal_names_the_contributors_of_the_entry_before_and_nobody_else() -> None:
    before = replace(chain_at(), tip_voters=(B, C))
    for named, is_right in (((B, C), True), ((), False), ((C, B), False), ((B, C, D), False)):
        told = replace(proposal(B, C), parent_voters=named)
        assert (proposal_problem(told, before, SHAPE, LIMITS) == "") == is_right, named
