"""Gathering: who is waited for, what is proposed and taken up, and when the next attempt begins."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, Monotonic, PeerId
from dilocoxd.machines.round.attempt import RunningAttempt
from dilocoxd.machines.round.gathering import gathered_at, look
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.joining import on_ready
from dilocoxd.machines.round.outcomes import GiveUp, Join, Outcome, TakeUp, VoteOn, Waiting
from dilocoxd.machines.round.outputs import ReportPeer
from dilocoxd.wire.messages import ProposeCommit
from tests.unit.machines.round_world import (
    LIMITS,
    ME,
    START,
    B,
    C,
    height_of,
    held_of,
    offer,
    process,
    proposal,
    ready,
    view,
)

SOON = Monotonic(START + LIMITS.grace_min_s)
LATE = Monotonic(START + LIMITS.grace_max_s + 0.1)


def looked(height: Height, now: Monotonic) -> Outcome:
    return look(height, process(), now)


def led_by(peer: PeerId) -> Height:
    """B and C live; the attempt is one that this peer coordinates."""
    height = height_of(B, C)
    while height.candidates()[0] != peer:
        height.attempt = type(height.attempt)(Attempt(height.attempt.index + 1), START)
    return height


def all_ready(height: Height, *with_contribution: PeerId) -> None:
    offer(height)
    for peer in (B, C):
        height.say(peer, ready(peer if peer in with_contribution else None, height.attempt.index), START)


def test_group_of_all_is_proposed_and_taken_up_at_once() -> None:
    height = led_by(ME)
    all_ready(height, B, C)
    found = looked(height, START)
    assert isinstance(found, TakeUp) and [c.peer for c in found.propose.contributions] == sorted([ME, B, C])
    assert len(found.orders) == 2, "told to the others, not to ourselves"


def test_straggler_is_waited_for_until_the_grace_is_over_then_counts_as_slow() -> None:
    height = led_by(ME)
    all_ready(height, B)
    found = looked(height, SOON)
    assert isinstance(found, Waiting) and C in found.reason and found.until == START + LIMITS.grace_max_s
    assert not height.book.records[C].is_straggler
    taken = looked(height, LATE)
    assert isinstance(taken, TakeUp) and taken.propose.observers == (C,)
    assert height.book.records[C].is_straggler


def test_coordinator_that_is_late_itself_waits_for_itself_once_until_it_offers() -> None:
    """R6.6 holds for ourselves: a slow site would else hold every round that it coordinates for the whole grace."""
    height = led_by(ME)
    height.own.is_training = True
    for peer in (B, C):
        height.say(peer, ready(peer, height.attempt.index), START)
    height.say(ME, height.ready_message(), START)
    found = looked(height, SOON)
    assert isinstance(found, Waiting) and ME in found.reason
    taken = looked(height, LATE)
    assert isinstance(taken, TakeUp) and taken.propose.observers == (ME,)
    assert ME not in gathered_at(height).awaited, "nobody waits for it in the next attempt"
    offer(height, LATE)
    assert not height.book.records[ME].is_straggler, "what it offers is in the next one"


def test_who_has_not_joined_is_waited_for_longer_then_is_left_out_until_it_answers() -> None:
    height = led_by(ME)
    offer(height)
    height.say(B, ready(B, height.attempt.index), START)
    assert isinstance(looked(height, LATE), Waiting)
    over = Monotonic(START + LIMITS.progress_timeout_s)
    assert isinstance(looked(height, over), TakeUp) and height.book.records[C].has_missed_join
    height.book.joined(C)
    assert C in gathered_at(height).unready


def test_who_is_silent_over_attempts_has_its_time_once_and_all_of_it_again_when_it_answers() -> None:
    """Who follows others from one attempt to the next waits no longer than who stays in one (R6.2)."""
    height = height_of(B, C)
    offer(height)
    timeout, patience = LIMITS.progress_timeout_s, LIMITS.coordinator_patience_s

    def enters(index: int, after_s: float) -> Monotonic:
        now = Monotonic(START + after_s)
        height.attempt = RunningAttempt(Attempt(index), now)
        height.say(ME, height.ready_message(), now)
        height.say(B, ready(B, Attempt(index)), now)
        looked(height, now)
        return now

    enters(0, 0.0)
    later = enters(1, patience)
    assert gathered_at(height).unready == {C: START + timeout}, "what it was silent for before counts"
    on_ready(height, C, ready(None, Attempt(1)), "gathering", later)
    assert not gathered_at(height).unready
    again = enters(2, 2 * patience)
    assert gathered_at(height).unready == {C: again + timeout}, "it has answered since"
    height.stood_still(1.0)
    height.book.stood_still(1.0)
    assert gathered_at(height).unready == {C: again + timeout + 1.0}
    height.book.see([view(B), view(C, is_live=False)], height.chain, again)
    height.book.see([view(B), view(C)], height.chain, again)
    enters(3, 3 * patience)
    assert gathered_at(height).unready == {C: START + 3 * patience + timeout}, "it may just have come back"
    height.book.reach(height.chain)
    assert not height.book.awaited


def test_later_attempt_of_a_live_peer_is_joined() -> None:
    height = height_of(B, C)
    height.say(B, ready(attempt=4), START)
    assert looked(height, START) == Join(Attempt(4))


def test_proposal_of_the_first_candidate_counts_at_once_another_one_after_a_patience() -> None:
    height = led_by(B)
    all_ready(height, B, C)
    index = height.attempt.index
    height.keep(C, proposal(ME, B, C, attempt=index), START)
    first = looked(height, START)
    assert isinstance(first, Waiting) and first.until is not None
    assert first.until <= START + LIMITS.coordinator_patience_s / 2
    height.keep(B, proposal(ME, B, C, attempt=index), START)
    taken = looked(height, START)
    assert isinstance(taken, TakeUp) and taken.coordinator == B


def test_broken_proposal_is_reported_and_dropped() -> None:
    height = led_by(B)
    all_ready(height, B, C)
    height.keep(B, replace(proposal(ME, B, attempt=height.attempt.index), lowrank_r=9), START)
    found = looked(height, START)
    assert isinstance(found, Waiting) and [type(order) for order in found.orders] == [ReportPeer]
    assert not height.attempt.proposals


def test_proposal_with_what_we_do_not_offer_is_given_up() -> None:
    height = led_by(B)
    all_ready(height, B, C)
    height.own.offer = None
    height.keep(B, proposal(ME, B, attempt=height.attempt.index), START)
    found = looked(height, START)
    assert isinstance(found, GiveUp) and "does not offer" in found.reason


@pytest.mark.parametrize(("num_told", "is_taken"), [(1, True), (2, False)])
def test_who_is_left_out_takes_up_the_first_candidate_against_one_peer_only(num_told: int, is_taken: bool) -> None:
    height = led_by(B)
    all_ready(height, B, C)
    index = height.attempt.index
    for peer in (C, B)[:num_told]:
        height.keep(peer, proposal(B, C, attempt=index), START)
    height.keep(B, proposal(ME, B, attempt=index), START)
    assert isinstance(looked(height, START), TakeUp) is is_taken


def test_silent_coordinator_is_passed_over_without_blame() -> None:
    height = led_by(B)
    all_ready(height, B, C)
    first = looked(height, START)
    assert isinstance(first, Waiting) and first.until is not None and B in first.reason
    grace_end = START + height.book.pace.grace(LIMITS)
    found = looked(height, Monotonic(grace_end + LIMITS.coordinator_patience_s))
    assert isinstance(found, GiveUp) and not found.is_told and not found.blames


def test_locked_entry_is_finished_by_its_voters() -> None:
    height = led_by(ME)
    held = replace(held_of(ME, B), attempt=Attempt(0))
    height.attempt = type(height.attempt)(Attempt(height.attempt.index + 3), START)
    while height.candidates()[0] != ME:
        height.attempt = type(height.attempt)(Attempt(height.attempt.index + 1), START)
    height.lock = held
    all_ready(height, C)
    height.say(B, ready(B, height.attempt.index, lock=held.on_wire), START)
    found = looked(height, START)
    assert isinstance(found, VoteOn) and found.voted_on.entry_hash == held.entry_hash
    assert isinstance(found.orders[0].message, ProposeCommit)  # type: ignore[union-attr]


def test_locked_entry_waits_for_who_was_not_heard_since_we_started() -> None:
    height = led_by(ME)
    height.attempt = type(height.attempt)(Attempt(height.attempt.index + 3), START)
    while height.candidates()[0] != ME:
        height.attempt = type(height.attempt)(Attempt(height.attempt.index + 1), START)
    absent = PeerId("gone")
    height.lock = held_of(ME, B, absent)
    all_ready(height, C)
    height.say(B, ready(B, height.attempt.index, lock=height.lock.on_wire), START)
    timers = process()
    timers.move(START)
    found = look(height, timers, START)
    assert isinstance(found, Waiting) and absent in found.reason
    assert isinstance(look(height, timers, Monotonic(START + LIMITS.progress_timeout_s)), VoteOn)


def locked_with(*others: PeerId, has_majority_quorum: bool = False, held_by: tuple[PeerId, ...] = (ME, B, C)) -> Height:
    """We coordinate; these and we, the recent contributors, are locked on an entry. Its payload lies with `held_by`."""
    limits = replace(LIMITS, has_majority_quorum=has_majority_quorum)
    height = height_of(*others, limits=limits)
    height.chain = replace(height.chain, recent=(frozenset([ME, *others]),))
    height.attempt = RunningAttempt(Attempt(5), START)
    while height.candidates()[0] != ME:
        height.attempt = RunningAttempt(Attempt(height.attempt.index + 1), START)
    held = held_of(ME, *others)
    height.lock = replace(held, results_held=ME in held_by)
    offer(height)
    for peer in others:
        lock = replace(held.on_wire, results_held=peer in held_by)
        height.say(peer, ready(peer, height.attempt.index, lock=lock), START)
    return height


def blames(height: Height, complains: PeerId, about: PeerId, num_attempts: int) -> None:
    for attempt in range(num_attempts):
        height.book.conflicts.blame(complains, [about], height.round, Attempt(attempt))


def voters_named(height: Height) -> set[PeerId]:
    found = looked(height, START)
    assert isinstance(found, VoteOn)
    return set(found.voted_on.voters)


def test_voter_that_never_votes_is_not_asked_to_finish_a_locked_entry() -> None:
    """R13.6: blamed for a vote that did not come, or gone from three attempts."""
    assert voters_named(locked_with(B, C)) == {ME, B, C}
    height = locked_with(B, C)
    for complains in (ME, B):
        blames(height, complains, C, 1)
    assert voters_named(height) == {ME, B, C}, "it may have crashed, and is back"
    height = locked_with(B, C)
    for complains in (ME, B):
        blames(height, complains, C, 2)
    assert voters_named(height) == {ME, B}
    height = locked_with(B, C)
    for attempt in range(3):
        height.words.gave_up(C, Attempt(attempt))
    assert voters_named(height) == {ME, B}
    height = locked_with(B)
    for complains, about in ((ME, B), (B, ME)):
        blames(height, complains, about, 2)
    assert voters_named(height) == {ME}, "who blames us back cannot stop us"


def test_all_voters_are_named_where_the_others_could_not_finish_the_entry() -> None:
    """R13.6: no majority, or no payload, without whom somebody blames."""
    height = locked_with(B, has_majority_quorum=True)
    blames(height, ME, B, 2)
    assert voters_named(height) == {ME, B}
    height = locked_with(B, C, has_majority_quorum=True)
    blames(height, ME, C, 2)
    assert voters_named(height) == {ME, B}
    height = locked_with(B, C, held_by=(C,))
    blames(height, ME, C, 2)
    assert voters_named(height) == {ME, B, C}
