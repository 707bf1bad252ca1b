"""Rules of protocol/06-rounds.md that a third reading found broken in small things; no schedule had."""

from dataclasses import replace

from dilocoxd.ids import Monotonic
from dilocoxd.machines.round.gathering import gathered_at
from tests.unit.machines.round_world import (
    LIMITS,
    ME,
    START,
    B,
    height_of,
    offer,
    ready,
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
