"""Final entries: by depth, by votes, by the operator's word; and that no recovery leaves one by itself. R28."""

from dataclasses import replace

import pytest

from dilocoxd.ids import Digest
from dilocoxd.machines.chain import RECENT_ENTRIES, view_of
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.finality import Place, num_final
from dilocoxd.machines.recovery.rollback import choose_at_start
from dilocoxd.wire.entry import SignedEntry, entry_hash
from tests.unit.daemon.chain.chain_maker import GENESIS, base_view, chain
from tests.unit.machines.recovery.recovery_world import Donor, World, grown

DEEP = RoundLimits(final_depth=3)
MAJORITY = RoundLimits(final_depth=1000, has_majority_quorum=True)
COMMON = grown([], 6, b"common")
OURS = grown(COMMON, 5, b"ours")
HEAVIER = grown(COMMON, 4, b"theirs", tokens=100)
LIGHTER = grown(COMMON, 2, b"theirs", tokens=1)


def place_of(entries: list[SignedEntry], height: int) -> Place:
    return height, entry_hash(entries[height - 1].entry)


@pytest.mark.parametrize(
    ("length", "fork", "depth", "final"),
    [
        (20, 0, 0, 0),
        (4, 0, 3, 1),
        (3, 0, 3, 0),
        (10, 2, 3, 5),
        (8, 0, 64, 0),
        (9, 0, 64, 1),
        (21, 0, 64, 7),
        (21, 7, 64, 0),
        (200, 0, 64, 136),
    ],
)
def test_depth_counts_the_entries_after_it_and_is_less_in_a_young_run(
    length: int, fork: int, depth: int, final: int
) -> None:
    own, limits = chain(length), RoundLimits(final_depth=depth)
    assert (
        num_final(own[fork:], view_of(base_view(), [s.entry for s in own[:fork]], Digest(bytes(32))), limits) == final
    )


def voted(*rows: tuple[str, ...]) -> list[SignedEntry]:
    """A chain whose entries were made by these peers."""
    made: list[SignedEntry] = []
    for index, peers in enumerate(rows):
        parent = entry_hash(made[-1].entry) if made else GENESIS
        (signed,) = chain(1, start=index, parent=parent, peers=peers)
        made.append(signed)
    return made


@pytest.mark.parametrize(
    ("rows", "final"),
    [
        ([("A", "B", "C")], 0),
        ([("A", "B", "C"), ("A", "B", "C")], 2),
        ([("A", "B", "C"), ("A", "B")], 0),
        ([("A", "B", "C", "D"), ("A", "B", "C")], 2),
        ([("A", "B", "C", "D"), ("A", "B", "X", "Y")], 0),
        ([("A",), ("A",), ("A",)], 0),
        ([("A", "B"), ("A", "B"), ("A",)], 2),
    ],
)
def test_votes_of_more_than_two_thirds_of_the_recent_contributors_make_final(
    rows: list[tuple[str, ...]], final: int
) -> None:
    own = voted(*rows)
    assert num_final(own, base_view(), MAJORITY) == final
    assert num_final(own, base_view(), replace(MAJORITY, has_majority_quorum=False)) == 0
    assert num_final(own, base_view(), replace(MAJORITY, final_depth=0)) == 0


def test_what_the_operator_chose_is_final() -> None:
    limits = RoundLimits()
    assert num_final(OURS, base_view(), limits, place_of(OURS, 8)) == 8
    assert num_final(OURS, base_view(), limits, place_of(HEAVIER, 8)) == 0
    assert num_final(OURS[6:], view_of(base_view(), [s.entry for s in COMMON], Digest(bytes(32))), limits) == 0


def test_heavier_branch_without_a_final_entry_of_ours_is_not_taken() -> None:
    world = World(OURS, {"b": Donor(HEAVIER)}, bounds=DEEP)
    done = world.run()
    assert world.log == OURS and not done.failure and not done.unconfirmed
    (kept,) = world.ordered(r.FinalKept)
    assert isinstance(kept, r.FinalKept) and (kept.peer, kept.num_final) == ("b", 2)
    assert kept.branch.tokens > sum(c.tokens for entry in kept.own for c in entry.contributions)


def test_lighter_branch_is_no_reason_to_alarm() -> None:
    world = World(OURS, {"b": Donor(LIGHTER)}, bounds=DEEP)
    world.run()
    assert world.log == OURS and not world.ordered(r.FinalKept)


def test_length_of_the_other_branch_makes_nothing_of_ours_final() -> None:
    far = grown(COMMON, 10, b"theirs", tokens=100)
    world = World(grown(COMMON, 3, b"ours"), {"b": Donor(far)}, bounds=DEEP)
    world.run()
    assert world.log == far


def test_next_peer_is_compared_when_final_entries_kept_us_from_one() -> None:
    ahead = grown(OURS, 2, b"ours")
    world = World(OURS, {"b": Donor(HEAVIER), "c": Donor(ahead)}, bounds=DEEP)
    world.run()
    assert world.log == ahead


@pytest.mark.parametrize("limits", [RoundLimits(final_depth=64), replace(MAJORITY, final_depth=64)])
def test_lone_history_from_genesis_with_a_snapshot_does_not_replace_ours(limits: RoundLimits) -> None:
    """Finding C2: 20 heavy entries of one key, against a site at height 21."""
    forged = [*chain(20, peers=("X",), tokens=10**9)]
    world = World(grown([], 21, b"honest"), {"x": Donor(forged, 20, (19,))}, bounds=limits)
    before = list(world.log)
    world.run()
    assert world.log == before and world.ordered(r.FinalKept) and not world.questions(r.AskSnapshots)


def test_operators_branch_is_taken_though_it_is_lighter_and_ours_final() -> None:
    world = World(OURS, {"b": Donor(LIGHTER)}, bounds=DEEP, adopted=place_of(LIGHTER, 7))
    world.run()
    assert world.log == LIGHTER and not world.ordered(r.FinalKept)
    (left,) = world.ordered(r.LeaveOwn)
    (check,) = world.ordered(r.CheckBranch)
    assert isinstance(left, r.LeaveOwn) and left.is_adopted and isinstance(check, r.CheckBranch) and check.is_adopted


def test_operators_branch_that_nobody_gives_is_left_again() -> None:
    world = World(OURS, {"b": Donor(LIGHTER, payloads_from=99)}, bounds=DEEP, adopted=place_of(LIGHTER, 8))
    world.run()
    assert world.log == OURS


@pytest.mark.parametrize(("adopted", "is_kept"), [(7, True), (8, True), (9, False)])
def test_branch_that_turns_out_false_above_the_operators_head_is_kept_up_to_there(adopted: int, is_kept: bool) -> None:
    theirs = grown(COMMON, 4, b"theirs", tokens=1, lies_at=8)
    world = World(OURS, {"b": Donor(theirs)}, bounds=DEEP, adopted=place_of(theirs, adopted))
    world.run()
    assert world.log == (theirs[:8] if is_kept else OURS)


def test_who_is_where_the_operator_wanted_is_kept_from_the_heavier_branch() -> None:
    world = World(LIGHTER, {"b": Donor(HEAVIER)}, bounds=DEEP, adopted=place_of(LIGHTER, 8))
    world.run()
    assert world.log == LIGHTER and world.ordered(r.FinalKept)


def test_start_after_a_crash_stays_on_the_operators_branch_once_it_is_whole() -> None:
    own, below = [signed.entry for signed in OURS[6:]], entry_hash(COMMON[-1].entry)
    there = choose_at_start(own, below, LIGHTER[6:], None, place_of(LIGHTER, 8))
    part = choose_at_start(own, below, LIGHTER[6:7], None, place_of(LIGHTER, 8))
    assert there is not None and not there.goes_back
    assert part is not None and part.goes_back


def test_young_runs_need_as_many_entries_as_count_as_recent() -> None:
    assert RECENT_ENTRIES == 8, "docs/trust.md and R28.2 say eight"
