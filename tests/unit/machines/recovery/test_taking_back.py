"""Recovery leaves an entry that a majority has taken back, and takes no branch that has it (R29)."""

from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch, is_better
from dilocoxd.machines.recovery.rollback import choose_at_start, dropped_phases, forgotten_phases
from dilocoxd.machines.round.outputs import InFlight
from dilocoxd.wire.entry import Contribution, SignedEntry, entry_hash
from tests.unit.machines.recovery.recovery_world import Donor, World, grown

SHARED = grown([], 3, b"shared")
SPOILED = grown(SHARED, 2, b"spoiled", tokens=100)
SOUND = grown(SHARED, 1, b"sound")
BAD = frozenset([entry_hash(SPOILED[3].entry)])
ME = PeerId("A")


def entries(log: list[SignedEntry]) -> tuple[object, ...]:
    return tuple(signed.entry for signed in log)


def test_entry_and_what_follows_it_are_left_and_nobody_is_asked() -> None:
    flying = InFlight(Contribution(ME, PhaseId(9), RoundIndex(3), 1, 1, bytes(32)), None, ())
    donors = {"B": Donor(SPOILED)}
    world = World(SPOILED, donors, takes_back=RoundIndex(3), reverted=BAD, in_flight=flying)
    done = world.run()
    [left] = [order for order in world.orders if isinstance(order, r.LeaveOwn)]
    assert left == r.LeaveOwn(Branch(3, ()), entries(SPOILED[3:]), flying, reverted=BAD)  # type: ignore[arg-type]
    assert world.states == ["taking_back", "leaving", "rebuilding", "done"] and not world.asked
    assert world.log == SHARED and world.digest == world.digest_of(SHARED), "the very bits of before"
    assert not done.failure and done.unasked == (PeerId("B"),)
    assert done.settled == flying.contribution.phase, "what is in flight may be what spoils the next one"


def test_who_cannot_make_the_state_before_it_stays_until_others_have_a_branch_without_it() -> None:
    alone = World(SPOILED, {"B": Donor(SPOILED)}, takes_back=RoundIndex(3), reverted=BAD, can_replay=False)
    alone.run()
    assert alone.log == SPOILED and not alone.ordered(r.LeaveOwn)
    donor = Donor(SOUND, snapshots=(3,))
    later = grown(SOUND, 1, b"more")
    donor = Donor(later, snapshots=(4,))
    follower = World(SPOILED, {"B": donor}, takes_back=RoundIndex(3), reverted=BAD, can_replay=False)
    follower.run()
    assert follower.log == later, "lighter, and without the entry"


def test_final_entries_below_one_that_was_taken_back_are_not_left_for_another_branch() -> None:
    before = grown(SHARED, 5, b"final")
    own = grown(before, 1, b"spoiled")
    bad, bounds = frozenset([entry_hash(own[8].entry)]), RoundLimits(final_depth=3)
    other = Donor(grown(SHARED, 2, b"another beginning"), snapshots=(4,))
    world = World(own, {"B": other}, takes_back=RoundIndex(8), reverted=bad, can_replay=False, bounds=bounds)
    world.run()
    assert world.log == own
    [kept] = world.ordered(r.FinalKept)
    assert isinstance(kept, r.FinalKept) and kept.num_final == 3, "entries 3 to 5: three follow each of them"
    without = Donor(grown(before, 2, b"sound"), snapshots=(9,))
    follower = World(own, {"B": without}, takes_back=RoundIndex(8), reverted=bad, can_replay=False, bounds=bounds)
    follower.run()
    assert follower.log == without.log and not follower.ordered(r.FinalKept)


def test_heavier_branch_with_it_is_not_taken_and_a_chain_with_it_loses_to_any() -> None:
    world = World(SOUND, {"B": Donor(SPOILED)}, reverted=BAD)
    assert not world.run().failure and world.log == SOUND
    heavy, light = Branch(3, tuple(SPOILED[3:])), Branch(3, tuple(SOUND[3:]))
    own = [signed.entry for signed in SPOILED[3:]]
    assert is_better(heavy, [SOUND[3].entry]) and not is_better(heavy, [SOUND[3].entry], BAD)
    assert is_better(light, own, BAD) and not is_better(light, own) and not is_better(Branch(3, ()), own, BAD)


def test_operators_word_does_not_bring_it_back() -> None:
    place = (5, Digest(entry_hash(SPOILED[4].entry)))
    world = World(SOUND, {"B": Donor(SPOILED)}, reverted=BAD, adopted=place)
    world.run()
    assert world.log == SOUND


def test_work_in_it_and_after_it_is_forgotten_and_work_before_it_is_owed() -> None:
    own, branch = [signed.entry for signed in SPOILED[2:]], Branch(2, ())
    assert dropped_phases(ME, own, branch, BAD) == (2,) and forgotten_phases(ME, own, BAD) == (3, 4)
    assert dropped_phases(ME, own, branch) == (2, 3, 4) and forgotten_phases(ME, own, frozenset()) == ()


def test_crash_between_two_branches_does_not_bring_it_back_nor_the_work_that_it_had() -> None:
    own, below = [signed.entry for signed in SPOILED[2:]], entry_hash(SHARED[1].entry)
    taken = [*SHARED[2:3], *SOUND[3:]]
    found = choose_at_start(own, below, taken, None, None, BAD)
    assert found is not None and not found.goes_back, "a chain with it loses to any branch without it, also at a start"
    assert [phase for phase, _ in found.dropped(ME)] == [], "the shared entry stays, the rest is owed to nobody"
    back = choose_at_start(
        [SOUND[3].entry], entry_hash(SHARED[2].entry), SPOILED[3:], None, (5, entry_hash(SPOILED[4].entry)), BAD
    )
    assert back is not None and back.goes_back, "nor does the operator's word"
