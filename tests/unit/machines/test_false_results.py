"""Entries with a result that we found false: the vote against them, and who is left out of groups (R29.11, R29.12)."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.chain import RECENT_ENTRIES
from dilocoxd.machines.peers.false_results import ENTRIES_MAX, LEFT_OUT_ROUNDS, LIARS_MAX, FalseResults
from dilocoxd.machines.peers.readiness import ABANDONED_MAX
from dilocoxd.machines.peers.reverts import (
    DECIDED_IN_ROUNDS_MAX,
    DECIDED_MAX,
    FALSE_IN_ROUNDS_MAX,
    IN_ROUNDS_MAX,
    VOTE_DEPTH,
    Reverts,
)
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.machines.round.gathering import gathered_at, look
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.machines.round.outcomes import VoteOn, Waiting
from dilocoxd.machines.round.proposals import _considered_commit
from dilocoxd.wire.messages import ProposeCommit, TakeBack
from tests.unit.machines.round_world import (
    HEAD,
    ME,
    START,
    B,
    C,
    D,
    chain_at,
    height_of,
    held_of,
    offer,
    process,
    ready,
    terms,
    view,
)
from tests.unit.machines.test_reverts import SITE, chain_of, told


def at(tip: object, number: int) -> Digest:
    digest = tip.hash_at(number)  # type: ignore[attr-defined]
    assert digest is not None
    return Digest(digest)


def test_vote_against_a_false_entry_is_cast_once_and_decides_with_others() -> None:
    reverts, tip = Reverts(), chain_of(12)
    false = {at(tip, 11): RoundIndex(11)}
    assert [one.round for one in reverts.vote_against(false, tip, SITE)] == [11]
    assert not reverts.vote_against(false, tip, SITE), "once"
    assert reverts.due(tip) is None, "one of four is no majority"
    reverts.hear(told(tip, 11, B, C), tip, SITE.keys)
    assert reverts.due(tip) is not None
    assert not reverts.vote_against(false, tip, SITE), "it is decided"


@pytest.mark.parametrize(
    ("number", "is_voted"), [(12 - RECENT_ENTRIES, True), (11 - RECENT_ENTRIES, False), (0, False)]
)
def test_vote_is_cast_as_long_as_others_can_count_it(number: int, is_voted: bool) -> None:
    tip = chain_of(12)
    assert bool(Reverts().vote_against({at(tip, number): RoundIndex(number)}, tip, SITE)) == is_voted


def decided(reverts: Reverts, tip: object, number: int, count: int, *, first: int = 0) -> list[Digest]:
    """So many entries of this round, none of them of our chain now, were taken back."""
    digests = [Digest(bytes([first + index]) * 32) for index in range(count)]
    for digest in digests:
        reverts.decided[digest] = replace(told(tip, number, B, C, D), entry_hash=digest)  # type: ignore[arg-type]
    return digests


def test_nobody_votes_against_what_is_not_in_its_chain_or_without_a_vote_of_its_own() -> None:
    tip = chain_of(12)
    assert not Reverts().vote_against({Digest(b"?" * 32): RoundIndex(11)}, tip, SITE)
    others = chain_of(12, (B, C))
    assert not Reverts().vote_against({at(others, 11): RoundIndex(11)}, others, SITE)


@pytest.mark.parametrize(
    ("num_false", "num_spoiled", "votes_false", "votes_spoiled"),
    [
        (FALSE_IN_ROUNDS_MAX - 1, IN_ROUNDS_MAX - 1, True, True),
        (FALSE_IN_ROUNDS_MAX, IN_ROUNDS_MAX - 1, False, True),
        (FALSE_IN_ROUNDS_MAX - 1, IN_ROUNDS_MAX, True, False),
        (DECIDED_IN_ROUNDS_MAX, 0, False, False),
    ],
)
def test_false_entries_and_spoiled_ones_are_counted_apart(
    num_false: int, num_spoiled: int, votes_false: bool, votes_spoiled: bool
) -> None:
    tip, reverts = chain_of(12), Reverts()
    false = dict.fromkeys(decided(reverts, tip, 11, num_false), RoundIndex(11))
    decided(reverts, tip, 11, num_spoiled, first=100)
    spoiled = RoundIndex(11), RoundIndex(12)
    assert bool(reverts.vote_against({**false, at(tip, 11): RoundIndex(11)}, tip, SITE)) == votes_false
    reverts.votes.clear()
    assert bool(reverts.vote(spoiled, tip, SITE, false)) == votes_spoiled


def test_certificates_of_all_that_may_be_voted_for_at_once_are_kept() -> None:
    # One below the limit, and all entries for which there still may be votes.
    assert DECIDED_IN_ROUNDS_MAX == IN_ROUNDS_MAX + FALSE_IN_ROUNDS_MAX
    assert DECIDED_IN_ROUNDS_MAX - 1 + RECENT_ENTRIES <= DECIDED_MAX


@pytest.mark.parametrize(
    ("round_before", "number", "is_voted"),
    [(None, 4, True), (11, 12 - VOTE_DEPTH, True), (11, 11 - VOTE_DEPTH, False), (100, 4, True)],
)
def test_after_one_was_taken_back_only_the_newest_entries_are_voted_against(
    round_before: int | None, number: int, is_voted: bool
) -> None:
    # Who knows of a lie may have it found as late as it likes: each time all rounds after it are lost.
    tip, reverts = chain_of(12), Reverts()
    if round_before is not None:
        [digest] = decided(reverts, tip, 11, 1)
        reverts.decided[digest] = replace(reverts.decided[digest], round=RoundIndex(round_before))
    assert bool(reverts.vote_against({at(tip, number): RoundIndex(number)}, tip, SITE)) == is_voted


def test_machine_votes_when_it_is_told_and_says_it() -> None:
    tip = chain_of(9)
    machine = RoundMachine(SITE, terms().shape, terms().limits, tip, None)
    machine.handle(e.Started(), now=START)
    commands = machine.handle(e.EntryFalse(RoundIndex(8), at(tip, 8), (B,)), now=START)
    (said,) = [one.message for one in commands if isinstance(one, c.Broadcast) and isinstance(one.message, TakeBack)]
    assert (said.round, said.entry_hash, [vote.peer for vote in said.votes]) == (8, at(tip, 8), [ME])


def test_liars_are_left_out_for_64_rounds_and_books_are_bounded() -> None:
    false = FalseResults()
    false.add(Digest(b"e" * 32), RoundIndex(7), (B, C))
    assert false.liars(RoundIndex(7)) == sorted([B, C]) == false.liars(RoundIndex(7 + LEFT_OUT_ROUNDS))
    assert not false.liars(RoundIndex(8 + LEFT_OUT_ROUNDS))
    for number in range(100):
        false.add(Digest(bytes([number]) * 32), RoundIndex(number), (PeerId(f"p{number}"),))
    assert len(false.entries) == ENTRIES_MAX
    assert len(false.liars(RoundIndex(64))) <= LIARS_MAX


def test_own_group_is_without_a_liar_unless_nobody_else_trains() -> None:
    machine = RoundMachine(SITE, terms().shape, terms().limits, chain_at(), None)
    machine.handle(e.Started(), now=START)
    machine.handle(e.PeersChanged((view(B), view(C))), now=START)
    for peer in (B, C):
        machine.handle(e.MessageReceived(peer, ready(peer)), now=START)
    assert set(gathered_at(machine.height).contributions) == {B, C}
    machine.handle(e.EntryFalse(RoundIndex(2), HEAD, (B,)), now=START)
    assert set(gathered_at(machine.height).contributions) == {C}
    machine.handle(e.EntryFalse(RoundIndex(2), HEAD, (C,)), now=START)
    assert set(gathered_at(machine.height).contributions) == {B, C}, "who alone trains may go on alone"


def test_liar_is_in_the_group_where_there_would_be_no_majority_without_it() -> None:
    height = height_of(B, limits=replace(terms().limits, has_majority_quorum=True))
    height.own.is_training = True
    height.own.false.add(HEAD, RoundIndex(2), (B,))
    for recent, left_out in (({ME, B}, set()), ({ME, C}, set()), ({ME}, {B})):
        height.chain = replace(height.chain, recent=(frozenset(recent),))
        assert height.left_out_here(()) == left_out, "C is not there"


def test_liar_is_in_the_group_where_those_without_it_are_a_majority_only_with_one_that_does_not_train() -> None:
    height = height_of(B, C, limits=replace(terms().limits, has_majority_quorum=True))
    height.own.is_training = True
    height.own.false.add(HEAD, RoundIndex(2), (B,))
    height.chain = replace(height.chain, recent=(frozenset({ME, B, C}),))
    assert height.left_out_here(()) == {B}, "C trains"
    height.book.see([view(B), replace(view(C), is_training=False)], height.chain, START)
    assert not height.left_out_here(())
    height.book.see([view(B), view(C)], height.chain, START)
    height.book.waited_in_vain(offering=[C])
    assert not height.left_out_here(()), "C had its time"
    height.say(C, ready(C), START)
    assert height.left_out_here(()) == {B}


@pytest.mark.parametrize("keeps", ["offers nothing", "does not join", "is accused", "gives up"])
def test_majority_waits_without_a_liar_only_as_long_as_others_have_their_time(keeps: str) -> None:
    height = height_of(B, C, limits=replace(terms().limits, has_majority_quorum=True))
    height.own.is_training = True
    height.own.false.add(HEAD, RoundIndex(2), (B,))
    height.chain = replace(height.chain, recent=(frozenset({ME, B, C}),))
    if keeps == "is accused":
        height.book.conflicts.blame(ME, [C], height.round)
    if keeps == "does not join":
        height.say(C, ready(C), START)
        height.attempt = type(height.attempt)(Attempt(1), START)
    elif keeps == "gives up":
        height.say(C, ready(C), START)
        for number in range(ABANDONED_MAX):
            height.words.gave_up(C, Attempt(number + 1))
    else:
        height.say(C, ready(), START)
    height.say(B, ready(B, height.attempt.index), START)
    offer(height)
    now, found = START, look(height, process(), START)
    while B not in gathered_at(height).contributions:
        assert isinstance(found, Waiting) and found.until is not None and found.until > now, "else nobody looks again"
        now = found.until
        found = look(height, process(), now)
    assert now <= START + terms().limits.progress_timeout_s
    assert set(gathered_at(height).contributions) == {ME, B}


def test_owners_of_an_earlier_attempt_are_not_named_for_an_entry_that_is_finished_in_another() -> None:
    # The coordinator may have proposed other terms to the owner in that attempt, and have its vote for this one only
    # because somebody else returned the same result to it: two votes of different attempts say different things.
    height = height_of(B)
    held = replace(held_of(ME, B), owners=(B, B))
    height.lock = held
    height.attempt = type(height.attempt)(Attempt(1), START)
    found = _considered_commit(height, B, ProposeCommit(height.round, Attempt(1), held.on_wire, held.voters), START)
    assert isinstance(found, VoteOn) and found.voted_on.entry_hash == held.entry_hash
    assert found.voted_on.owners == ()
