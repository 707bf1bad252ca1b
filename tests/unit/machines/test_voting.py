"""Votes and acceptance: when an entry is decided, what stops it, and who is named when votes differ."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId
from dilocoxd.machines.peers.record import PEERS_MAX
from dilocoxd.machines.round.exchanging import look as look_at_results
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.outcomes import GATHERING, Commit, GiveUp, Recover, Waiting
from dilocoxd.machines.round.proposals import group_proposal
from dilocoxd.machines.round.voting import decided_by, look, on_accept, on_result_hashes, on_vote, signed_vote
from dilocoxd.wire.entry import SignedVote
from dilocoxd.wire.messages import Accept, ResultHashes, Vote
from tests.unit.machines.round_world import (
    HASHES,
    LIMITS,
    ME,
    SIGNED,
    START,
    B,
    C,
    begin_exchange,
    contribution,
    height_of,
    held_of,
    ready,
    view,
    vote_for,
)

LATE = Monotonic(START + LIMITS.vote_timeout_s)
OTHER = Digest(b"o" * 32)


def voting(*group: PeerId, observers: tuple[PeerId, ...] = ()) -> Height:
    """We have voted for the entry of this group."""
    height = height_of(*(peer for peer in (*group, *observers) if peer != ME))
    begin_exchange(height, *group, observers=observers)
    height.attempt.vote_on(held_of(*group, observers=observers), START)
    assert height.attempt.voted_on is not None
    height.votes.add(vote_for(ME, height.attempt.voted_on))
    return height


def votes(height: Height, peer: PeerId, *, entry: Digest | None = None) -> None:
    assert height.attempt.voted_on is not None
    vote = vote_for(peer, height.attempt.voted_on)
    assert on_vote(height, peer, vote if entry is None else replace(vote, entry_hash=entry), GATHERING) is None


def test_all_votes_and_no_observer_commit() -> None:
    height = voting(ME, B)
    assert isinstance(look(height, START), Waiting)
    votes(height, B)
    found = look(height, START)
    assert isinstance(found, Commit) and [vote.peer for vote in found.votes] == sorted([ME, B])


def test_votes_of_different_attempts_are_not_added_up() -> None:
    height = voting(ME, B)
    assert height.attempt.voted_on is not None
    cast = vote_for(B, height.attempt.voted_on)
    later = replace(cast, vote=replace(cast.vote, attempt=Attempt(1)))
    assert on_vote(height, B, later, GATHERING) is None
    assert decided_by(height, height.attempt.voted_on, START) is None


def test_live_observer_is_asked_and_a_silent_one_may_not_stop_a_round() -> None:
    height = voting(ME, B, observers=(C,))
    votes(height, B)
    waiting = look(height, START)
    assert isinstance(waiting, Waiting) and C in waiting.reason and waiting.until == LATE
    assert isinstance(look(height, LATE), Commit) and height.book.is_silent(C)
    on_accept(height, C, Accept(height.round, Attempt(0), ME))
    assert not height.book.is_silent(C), "waited for again"


def test_r8_who_says_ready_is_asked_though_membership_has_not_heard_of_it() -> None:
    height = voting(ME, observers=(B,))
    height.book.see([], height.chain, START)
    height.book.tips.hear(height.chain, B, height.round, height.chain.head, START)
    height.say(ME, ready(ME), START)
    height.say(B, ready(), START)
    assert group_proposal(height, (contribution(ME),), START).observers == (B,)
    assert isinstance(look(height, START), Waiting)
    on_accept(height, B, Accept(height.round, Attempt(0), ME))
    assert isinstance(look(height, START), Commit)
    silent = Monotonic(START + LIMITS.progress_timeout_s)
    assert not group_proposal(height, (contribution(ME),), silent).observers
    height.book.see([view(B, is_live=False)], height.chain, START)
    assert not group_proposal(height, (contribution(ME),), START).observers, "membership knows better"


def test_observer_that_accepts_lets_the_commit_pass() -> None:
    height = voting(ME, B, observers=(C,))
    votes(height, B)
    on_accept(height, C, Accept(height.round, Attempt(0), ME))
    assert isinstance(look(height, START), Commit)


@pytest.mark.parametrize("is_silent", [False, True])
def test_observer_at_work_elsewhere_stops_the_commit(is_silent: bool) -> None:
    height = voting(ME, B, observers=(C,))
    votes(height, B)
    on_accept(height, C, Accept(height.round, Attempt(0), B))
    if is_silent:
        height.book.waited_in_vain(accepting=[C])
    found = look(height, START)
    assert isinstance(found, GiveUp) and "another group" in found.reason
    assert height.words.left(C) == 0 and not height.is_left_out(C), "nor does anybody wait for it in this attempt"


@pytest.mark.parametrize("now", [START, LATE])
def test_observer_that_went_on_without_accepting_ends_the_attempt_at_any_time(now: Monotonic) -> None:
    height = voting(ME, B, observers=(C,))
    votes(height, B)
    height.say(C, ready(attempt=1), START)
    found = look(height, now)
    assert isinstance(found, GiveUp) and C in found.reason


def test_voter_that_is_lost_or_does_not_vote_in_time_ends_the_attempt() -> None:
    height = voting(ME, B)
    height.book.see([view(B, is_live=False)], height.chain, START)
    lost = look(height, START)
    assert isinstance(lost, GiveUp) and "lost" in lost.reason and not lost.blames
    silent = look(voting(ME, B), LATE)
    assert isinstance(silent, GiveUp) and silent.blames == (B,)


def test_r12_contributor_of_which_membership_has_never_heard_is_not_lost() -> None:
    height = voting(ME, B)
    exchange = height.attempt.exchange
    assert exchange is not None
    height.book.see([], height.chain, START)
    assert isinstance(look(height, START), Waiting)
    assert isinstance(look_at_results(height, START), Waiting)
    height.book.goodbye(B, has_departed=True)
    for found in (look(height, START), look_at_results(height, START)):
        assert isinstance(found, GiveUp) and "lost" in found.reason and not found.blames


def test_decided_entry_whose_payload_others_hold_is_recovered_after_a_pause() -> None:
    height = voting(ME, B)
    votes(height, B)
    held = replace(held_of(ME, B), results_held=False)
    assert isinstance(decided_by(height, held, START), Recover)
    height.book.tips.retry_at = LATE
    waiting = decided_by(height, held, START)
    assert isinstance(waiting, Waiting) and waiting.until == LATE


@pytest.mark.parametrize(
    ("peer", "vote_of", "is_genuine", "rule"),
    [(B, C, True, "foreign_vote"), (B, B, False, "bad_signature")],
)
def test_vote_that_is_not_what_it_says_is_a_violation(
    peer: PeerId, vote_of: PeerId, is_genuine: bool, rule: str
) -> None:
    height = voting(ME, B)
    assert height.attempt.voted_on is not None
    found = on_vote(height, peer, vote_for(vote_of, height.attempt.voted_on, is_genuine=is_genuine), GATHERING)
    assert found is not None and (found.peer, found.rule) == (peer, rule)


def test_words_of_ids_without_end_push_out_none_of_who_is_there() -> None:
    """Each is right: whoever makes an id signs with its key."""
    height = voting(ME, B, observers=(C,))
    assert height.attempt.voted_on is not None
    on_accept(height, C, Accept(height.round, Attempt(0), ME))
    votes(height, B)
    for number in range(PEERS_MAX + 10):
        fresh = PeerId(f"fresh{number}")
        assert on_vote(height, fresh, vote_for(fresh, height.attempt.voted_on), GATHERING) is None
        on_accept(height, fresh, Accept(height.round, Attempt(0), ME))
    assert len(height.votes.votes) <= PEERS_MAX and len(height.accepts.accepted) <= PEERS_MAX
    found = look(height, START)
    assert isinstance(found, Commit) and [vote.peer for vote in found.votes] == sorted([ME, B])


def test_two_votes_in_one_attempt_are_a_violation() -> None:
    height = voting(ME, B)
    votes(height, B)
    found = on_vote(
        height, B, Vote(height.round, height.chain.head, OTHER, SignedVote(B, Attempt(0), 0, SIGNED)), GATHERING
    )
    assert found is not None and found.rule == "double_vote"


def test_owner_of_the_segment_that_differs_is_named_when_its_hashes_are_shown() -> None:
    height = voting(ME, B)
    exchange = height.attempt.exchange
    assert exchange is not None
    exchange.results.update({(0, segment): HASHES[segment] for segment in range(2)})
    votes(height, B, entry=OTHER)
    waiting = look(height, START)
    assert isinstance(waiting, Waiting) and waiting.until == START + LIMITS.vote_timeout_s / 2
    assert [type(order.message) for order in waiting.orders] == [ResultHashes]  # type: ignore[union-attr]
    theirs = next(segment for segment, owner in enumerate(exchange.owners) if owner == B)
    shown = [bytes(one) for one in HASHES]
    shown[theirs] = bytes(32)
    on_result_hashes(height, B, ResultHashes(height.round, Attempt(0), tuple(shown)), START)
    found = look(height, START)
    assert isinstance(found, GiveUp) and found.blames == (B,)


def test_our_vote_names_our_attempt() -> None:
    height = voting(ME, B)
    height.attempt = type(height.attempt)(Attempt(5), START)
    assert signed_vote(height, held_of(ME, B)).attempt == 5
