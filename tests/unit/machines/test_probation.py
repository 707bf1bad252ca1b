"""Who enters an open run is on probation: what follows from the chain, and what it changes in a round (M11)."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.chain import ChainView, entry_tokens
from dilocoxd.machines.peers.standing import PeerBook
from dilocoxd.machines.round.gathering import gathered_at
from dilocoxd.machines.round.grouping import (
    Gathered,
    decide_group,
    probation_problem,
    probation_room,
    proposal_problem,
    without_conflicts,
)
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.locks import resolve_locks
from dilocoxd.machines.round.proposals import group_proposal, quorum_problem
from dilocoxd.wire.entry import Entry
from dilocoxd.wire.messages import Lock
from tests.unit.machines import round_world
from tests.unit.machines.round_world import (
    HASHES,
    HEAD,
    LIMITS,
    ME,
    RUN,
    SHAPE,
    START,
    B,
    C,
    D,
    contribution,
    height_of,
    offer,
    proposal,
    ready,
)

ROUNDS = 4
GENESIS = Digest(bytes(32))
EARLY = Attempt(0)


def empty(*founders: PeerId, rounds: int = ROUNDS) -> ChainView:
    served = MappingProxyType(dict.fromkeys(founders, rounds))
    return ChainView(
        RUN, RoundIndex(0), GENESIS, GENESIS, participation_rounds=8, probation_rounds=rounds, served=served
    )


def extended(view: ChainView, *group: PeerId) -> ChainView:
    """With one more entry, of these."""
    peers = sorted(group)
    named = tuple(replace(contribution(peer, int(view.height)), base_round=view.height) for peer in peers)
    decided = (0, 0, 0, view.tip_voters, (), view.ramps(peers))
    return view.extended(Entry(RUN, view.height, view.head, view.state_digest, named, HASHES, *decided), GENESIS)


def chain_with(**served: int) -> ChainView:
    """At height 3, these peers having contributed to so many entries."""
    known = {PeerId(peer): count for peer, count in served.items()}
    return replace(
        round_world.chain_at(),
        probation_rounds=ROUNDS,
        served=known,
        last_phases={peer: PhaseId(-1) for peer in known},
        recent=(frozenset(known),),
    )


FOUNDED = chain_with(me=ROUNDS, pB=ROUNDS, pC=1, pD=0)


def gathered(chain: ChainView, *peers: PeerId, conflicts: frozenset[tuple[PeerId, PeerId]] = frozenset()) -> Gathered:
    fresh = sorted((peer for peer in peers if chain.is_on_probation(peer)), key=lambda peer: -chain.served.get(peer, 0))
    return Gathered(
        contributions={peer: contribution(peer) for peer in peers},
        awaited={},
        unready={},
        absent=frozenset(),
        first_ready_at=START,
        attempt_started_at=START,
        grace_s=0.0,
        conflicts=conflicts,
        recent_contributors=chain.electorate(()),
        on_probation=fresh,
    )


def group_of(found: Gathered) -> list[PeerId]:
    decision = decide_group(found, LIMITS, now=Monotonic(START + 100.0))
    return [named.peer for named in decision.group or ()]


def test_who_enters_is_on_probation_until_enough_entries_name_it() -> None:
    view = extended(empty(), ME, B)
    assert not view.is_on_probation(ME) and not view.is_on_probation(B), "founders"
    found = []
    while view.is_on_probation(C):
        found.append(view.ramps([ME, C]))
        view = extended(extended(view, ME, C), ME)
    assert found == [(64, 12), (64, 25), (64, 38), (64, 51)], "entries that do not name it do not count"
    assert view.ramps([ME, C]) == () and view.height == 1 + 2 * ROUNDS


def test_named_founders_are_the_only_ones() -> None:
    view = empty(B)
    assert view.is_on_probation(ME) and not view.is_on_probation(B)
    assert probation_problem([ME], view) and not probation_problem([B, ME], view)
    assert extended(view, B, ME).is_on_probation(ME), "being in the first entry makes no founder"


def test_nobody_is_on_probation_in_other_runs_or_before_the_first_entry() -> None:
    assert not empty().is_on_probation(ME) and not probation_problem([ME, B], empty())
    other = extended(extended(empty(rounds=0), ME), ME, B)
    assert not other.is_on_probation(B) and other.ramps([ME, B]) == () and not other.served


def test_only_members_weigh_in_forks_and_count_for_participation_and_majorities() -> None:
    view = extended(empty(), ME, B)
    before = view.weight
    view = extended(view, ME, C, D)
    assert view.weight == before + contribution(ME).tokens, "C and D claim as much each"
    assert view.turnout == (2, 1) and view.missed == 1
    assert view.recent_contributors == view.electorate(()) == {ME, B}
    entry = Entry(RUN, RoundIndex(0), HEAD, HEAD, (contribution(C),), HASHES, 0, 0, 0, (), (), (12,))
    assert entry_tokens(entry) == 0 and entry.counted == () and entry.ramp_of(0) == 12


@pytest.mark.parametrize(("members", "room"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_room_for_fresh_ids_grows_with_the_members(members: int, room: int) -> None:
    assert probation_room(members) == room


def test_group_takes_half_as_many_on_probation_as_members() -> None:
    assert group_of(gathered(FOUNDED, ME, B, C, D)) == [ME, B, C], "the one that contributed to more entries"
    assert group_of(gathered(FOUNDED, ME, D)) == [ME, D]
    assert group_of(gathered(FOUNDED, C, D)) == []
    assert "not on probation" in decide_group(gathered(FOUNDED, C, D), LIMITS, now=START).reason
    assert probation_problem([ME, B, C, D], FOUNDED) == "names 2 peers on probation beside 2 others"
    assert probation_problem([C, D], FOUNDED) == "names nobody but peers on probation"
    for group in ((ME, B, C, D), (C, D)):
        assert proposal_problem(proposal(*group), FOUNDED, SHAPE, LIMITS) == probation_problem(group, FOUNDED)


def test_fresh_ids_leave_when_they_are_in_conflict_with_members() -> None:
    """However many of them complain: of two members that they complain about, none goes."""
    pairs = frozenset((fresh, member) for fresh in (C, D) for member in (ME, B))
    assert without_conflicts([ME, B, C, D], pairs) == {C, D}, "who is in most conflicts goes; else names decide"
    assert without_conflicts([ME, B, C, D], pairs, {C, D}) == {ME, B}
    assert without_conflicts([C, D], {(C, D)}, {C, D}) == {C}
    assert group_of(gathered(FOUNDED, ME, B, C, D, conflicts=pairs)) == [ME, B]


def test_fresh_ids_own_nothing_and_coordinate_last() -> None:
    height = height_of(B, C, D)
    height.chain = FOUNDED
    offer(height)
    for peer in (B, C):
        height.say(peer, ready(peer), START)
    assert height.ordered([D, C, B, ME])[2:] in ([C, D], [D, C])
    made = group_proposal(height, tuple(contribution(peer) for peer in sorted((ME, B, C))), START)
    owners = {made.contributions[owner].peer for owner in made.owners}
    assert owners == {ME, B} and not proposal_problem(made, FOUNDED, SHAPE, LIMITS)
    stolen = replace(made, owners=(2, 2))
    assert made.contributions[2].peer == C
    assert proposal_problem(stolen, FOUNDED, SHAPE, LIMITS) == "has a peer on probation sum for others"
    assert not proposal_problem(stolen, replace(FOUNDED, served={}), SHAPE, LIMITS)


def test_members_are_awaited_whatever_fresh_ids_say_of_them() -> None:
    height = height_of(B, C)
    height.chain = FOUNDED
    offer(height)
    height.book.conflicts.blame(C, [B], height.round)
    assert B in gathered_at(height).awaited
    height.book.conflicts.blame(ME, [B], height.round)
    assert B not in gathered_at(height).awaited


@pytest.mark.parametrize("is_majority", [False, True])
def test_votes_of_fresh_ids_alone_commit_nothing(is_majority: bool) -> None:
    height = height_of(B, limits=replace(LIMITS, has_majority_quorum=is_majority))
    height.chain = FOUNDED
    assert quorum_problem(height, frozenset([C, D]), ()) == "only peers on probation voted"
    assert quorum_problem(height, frozenset([ME, B, D]), ()) == ""
    assert bool(quorum_problem(height, frozenset([ME, C, D]), ())) == is_majority, "one member of two is no majority"


def test_lock_of_nobody_but_fresh_ids_is_void() -> None:
    """Its member is gone; who is left may have committed, but nobody would take what they finish."""
    lock = Lock(EARLY, HEAD, (ME, C), True)
    fresh = FOUNDED.is_on_probation

    def resolve(voters: tuple[PeerId, ...], *, may_fork: bool) -> str:
        found = resolve_locks({C: replace(lock, voters=voters)}, {C}, Attempt(1), may_fork=may_fork, is_fresh=fresh)
        return "free" if found.is_free else "finish" if found.commit else "wait"

    assert resolve((ME, C), may_fork=True) == "free"
    assert resolve((ME, C), may_fork=False) == "finish", "and the quorum forbids it: its member is waited for"
    assert resolve((C, D), may_fork=True) == resolve((C, D), may_fork=False) == "free", "nobody can have committed it"
    assert resolve_locks({C: lock}, {C}, Attempt(1)).commit == lock, "in other runs it is finished"


def test_bits_of_fresh_ids_are_not_counted() -> None:
    height: Height = height_of(B, C, D)
    book: PeerBook = height.book
    for peer in (C, D):
        book.tips.holds_bits(peer, HEAD)
    assert book.tips.has_wrong_bits(height.chain) and not book.tips.has_wrong_bits(FOUNDED)
    book.tips.holds_bits(B, HEAD)
    assert book.tips.has_wrong_bits(FOUNDED), "one member holds others than we do"
