"""Entries with a result that we found false: the vote against them, and who is left out of groups (R29.11, R29.12)."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.chain import RECENT_ENTRIES
from dilocoxd.machines.peers.false_results import ENTRIES_MAX, LEFT_OUT_ROUNDS, LIARS_MAX, FalseResults
from dilocoxd.machines.peers.reverts import FALSE_IN_ROUNDS_MAX, Reverts
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.machines.round.gathering import gathered_at
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.machines.round.outcomes import VoteOn
from dilocoxd.machines.round.proposals import _considered_commit
from dilocoxd.wire.messages import ProposeCommit, TakeBack
from tests.unit.machines.round_world import HEAD, ME, START, B, C, D, chain_at, height_of, held_of, ready, terms, view
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


def test_nobody_votes_against_what_is_not_in_its_chain_or_without_a_vote_of_its_own_or_for_a_seventh() -> None:
    tip = chain_of(12)
    assert not Reverts().vote_against({Digest(b"?" * 32): RoundIndex(11)}, tip, SITE)
    others = chain_of(12, (B, C))
    assert not Reverts().vote_against({at(others, 11): RoundIndex(11)}, others, SITE)
    reverts = Reverts()
    for number in range(FALSE_IN_ROUNDS_MAX):
        assert reverts.vote_against({at(tip, 11): RoundIndex(11)}, tip, SITE) or number
        reverts.votes.clear()
        digest = Digest(bytes([number]) * 32)
        reverts.decided[digest] = replace(told(tip, 11, B, C, D), entry_hash=digest)
    assert not reverts.vote_against({at(tip, 11): RoundIndex(11)}, tip, SITE)


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
