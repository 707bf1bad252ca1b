"""What the trainers are told to read, and what the round machine hears of it."""

from dataclasses import replace

from dilocoxd.daemon.chain.reading_plan import ReadingPlan
from dilocoxd.daemon.round.as_read import as_read
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.reading.leases import LeaseRules
from dilocoxd.machines.round.inputs import PhaseOffered, RecoveryFinished
from dilocoxd.wire.entry import Contribution, Entry, Signature
from dilocoxd.wire.local.trainer import CloseBoundary, StartTraining, TakeAnchor
from tests.unit.machines.round_world import chain_at

ME, OTHER, ZERO, SEQ_LEN = PeerId("a"), PeerId("b"), Digest(bytes(32)), 4
RULES = LeaseRules(SEQ_LEN, 8)
AT = RoundIndex(0)


def work(peer: PeerId, phase: int, base: int) -> Contribution:
    return Contribution(peer, PhaseId(phase), RoundIndex(base), 1, SEQ_LEN * 5, ZERO)


def entries(*named: Contribution) -> list[Entry]:
    """One for each contribution."""
    return [
        Entry(RunId("r"), RoundIndex(height), ZERO, ZERO, (one,), (ZERO,), 0, 0, 1, (), ())
        for height, one in enumerate(named)
    ]


def signed(contribution: Contribution) -> Signature:
    return Signature(b"k", f"base {contribution.base_round}".encode())


def offered(contribution: Contribution) -> PhaseOffered:
    return PhaseOffered(contribution, (ZERO,), signed(contribution))


def plan_after_a_fork() -> ReadingPlan:
    """It was told to read phase 2 on a branch that has taken from the queue of it, and stands on another one."""
    plan, common = ReadingPlan(RULES, ME), [work(OTHER, 0, 0), work(ME, 0, 1)]
    plan.restart(entries(*common, work(ME, 1, 2)))
    plan.with_samples(CloseBoundary("keep", RoundIndex(3), PhaseId(2), 5))
    plan.restart(entries(work(OTHER, 0, 0), work(OTHER, 1, 1), work(OTHER, 2, 2)))
    return plan


def test_phase_that_begins_is_told_its_samples_and_one_that_begins_anew_is_told_them_again() -> None:
    plan = ReadingPlan(RULES, ME)
    begun = plan.with_samples(StartTraining(PhaseId(4), AT, 5, ""))
    assert isinstance(begun, StartTraining) and begun.samples == (0, 8)
    following = plan.with_samples(CloseBoundary("keep", AT, PhaseId(5), 5))
    assert isinstance(following, CloseBoundary) and following.samples == (8, 16)
    plan.restart(entries(work(ME, 5, 0)))
    replaced = plan.with_samples(TakeAnchor(RoundIndex(1), "replace"))
    assert isinstance(replaced, TakeAnchor) and replaced.samples[0] == 13
    merged = plan.with_samples(TakeAnchor(RoundIndex(1), "merge"))
    assert isinstance(merged, TakeAnchor) and not merged.samples


def test_run_on_one_text_names_every_base_as_it_is() -> None:
    plan = ReadingPlan(None, ME)
    assert plan.with_samples(TakeAnchor(AT, "replace")) == TakeAnchor(AT, "replace")
    assert as_read(offered(work(ME, 0, 7)), plan, None, signed, PhaseId(0)) == offered(work(ME, 0, 7))


def test_contribution_of_a_phase_of_a_lost_branch_is_offered_to_nobody() -> None:
    event = offered(work(ME, 2, 3))
    assert as_read(event, plan_after_a_fork(), None, signed, PhaseId(2)) == replace(event, is_misread=True)


def test_contribution_that_flew_through_the_fork_does_not_stay_offered() -> None:
    plan, event = plan_after_a_fork(), RecoveryFinished(chain_at(3), None)
    assert as_read(event, plan, work(ME, 2, 3), signed, PhaseId(2)) == replace(event, misread=PhaseId(2))
    assert as_read(event, plan, None, signed, None) == event


def test_contribution_that_the_site_gave_up_while_the_word_of_it_waited_is_offered_to_nobody() -> None:
    """It was formed while an entry was taken back, and forgotten with it (R29.7); nobody could send it."""
    event = offered(work(ME, 0, 7))
    assert as_read(event, ReadingPlan(None, ME), None, signed, None) == replace(event, is_misread=True)


def test_older_base_is_named_and_signed_anew() -> None:
    """Another newcomer took the door at which it was told to read, and a merge moved its base behind that."""
    plan = ReadingPlan(RULES, ME)
    plan.with_samples(CloseBoundary("keep", AT, PhaseId(1), 5))
    plan.restart(entries(work(OTHER, 0, 0), work(ME, 0, 0)))
    assert as_read(offered(work(ME, 1, 2)), plan, None, signed, PhaseId(1)) == offered(work(ME, 1, 0))
    flying, event = work(ME, 1, 0), RecoveryFinished(chain_at(2), None)
    assert as_read(event, plan, flying, signed, PhaseId(1)) == event
