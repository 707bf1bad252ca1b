"""Rules of protocol/06-rounds.md that a third reading found broken in small things; no schedule had."""

from dataclasses import replace

from dilocoxd.ids import Attempt, Monotonic
from dilocoxd.machines.round.attempt import RunningAttempt
from dilocoxd.machines.round.gathering import gathered_at, look
from dilocoxd.machines.round.outcomes import GATHERING
from dilocoxd.machines.round.proposals import on_proposal
from dilocoxd.wire.messages import ProposeCommit
from tests.unit.machines.round_world import (
    LIMITS,
    ME,
    START,
    B,
    C,
    D,
    height_of,
    held_of,
    offer,
    process,
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
