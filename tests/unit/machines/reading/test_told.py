"""The base that a contribution may name for what its phase was told to read (Q4)."""

from dilocoxd.ids import PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.reading.leases import LeaseRules, Leases, first_leases, leases_of
from dilocoxd.machines.reading.ranges import SampleRange, joined
from dilocoxd.machines.reading.told import TOLD_MAX, ToldPhases
from dilocoxd.wire.entry import Contribution, Entry
from tests.unit.machines.reading.world import SEQ_LEN, ZERO

RULES = LeaseRules(SEQ_LEN, 8)
ME, OTHER = PeerId("a"), PeerId("b")
ALL = 1 << 20


def work(peer: PeerId, phase: int, base: int, count: int = 5) -> Contribution:
    return Contribution(peer, PhaseId(phase), RoundIndex(base), 1, SEQ_LEN * count, ZERO)


def after(*entries: tuple[Contribution, ...]) -> Leases:
    """The leases of a chain of entries with these contributions."""
    chain = [
        Entry(RunId("r"), RoundIndex(height), ZERO, ZERO, named, (ZERO,), 0, 0, 1, (), ())
        for height, named in enumerate(entries)
    ]
    return leases_of(RULES, chain)


def test_base_that_a_merge_has_moved_is_named_while_the_queue_has_the_same_front() -> None:
    told = ToldPhases(ME)
    told.tell(PhaseId(1), after((work(ME, 9, 0),)), ALL)
    assert told.base_of(work(ME, 1, 2), after((work(ME, 9, 0),), (work(ME, 0, 1),))) == 2


def test_newcomer_whose_door_another_took_names_the_height_at_which_it_was_told_what_to_read() -> None:
    """A merge moved its base behind that: an entry would take from its own new queue what it never read."""
    told = ToldPhases(ME)
    told.tell(PhaseId(1), first_leases(RULES), ALL)
    both_in = after((work(OTHER, 0, 0),), (work(ME, 0, 0),))
    assert told.base_of(work(ME, 1, 2), both_in) == 0
    assert both_in.taken_by(work(ME, 1, 0)) is None
    assert both_in.taken_by(work(ME, 1, 2)) is not None


def test_phase_that_began_on_a_branch_that_lost_is_in_the_chain_with_no_base_that_says_otherwise() -> None:
    """Its queue had moved on there; here the front is one that nobody has read."""
    common = [(work(OTHER, 0, 0),), (work(ME, 0, 1),)]
    told = ToldPhases(ME)
    told.tell(PhaseId(2), after(*common, (work(ME, 1, 2),), (work(ME, 4, 3),)), ALL)
    here = after(*common, (work(OTHER, 1, 2),), (work(OTHER, 2, 3),), (work(OTHER, 3, 4),))
    assert told.base_of(work(ME, 2, 5), here) is None
    assert told.base_of(work(ME, 2, 1), here) == 1, "older than the front: it takes nothing"


def test_phase_that_was_told_before_two_branches_parted_may_be_in_either() -> None:
    common = [(work(OTHER, 0, 0),), (work(ME, 0, 1),)]
    told = ToldPhases(ME)
    told.tell(PhaseId(1), after(*common), ALL)
    assert told.base_of(work(ME, 1, 4), after(*common, (work(OTHER, 1, 2),), (work(OTHER, 2, 3),))) == 4


def test_phase_that_reads_anew_is_judged_by_what_it_was_told_last() -> None:
    common = [(work(OTHER, 0, 0),), (work(ME, 0, 1),)]
    told = ToldPhases(ME)
    told.tell(PhaseId(2), after(*common, (work(ME, 4, 2),)), ALL)
    here = after(*common, (work(OTHER, 1, 2),))
    assert told.base_of(work(ME, 2, 3), here) is None
    assert told.newest is not None
    told.tell(told.newest, here, ALL)
    assert told.base_of(work(ME, 2, 3), here) == 3


def test_only_the_newest_phases_are_remembered_and_of_others_nothing_is_claimed() -> None:
    told, leases = ToldPhases(ME), first_leases(RULES)
    for phase in range(TOLD_MAX + 1):
        told.tell(PhaseId(phase), leases, ALL)
    assert told.base_of(work(ME, 0, 0), leases) is None
    assert told.base_of(work(ME, 1, 0), leases) == 0


def test_same_samples_in_other_pieces_are_the_same() -> None:
    parts = (SampleRange(0, 3), SampleRange(3, 5), SampleRange(9, 10))
    assert joined(parts) == (SampleRange(0, 5), SampleRange(9, 10))
    assert joined(reversed(parts)) == (SampleRange(9, 10), SampleRange(3, 5), SampleRange(0, 3))
