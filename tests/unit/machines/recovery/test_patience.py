"""While most stand with us, each branch has a limited time to be shown (R22.6): its own, in which we run (R18)."""

import pytest

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.recovery import interface as r
from tests.unit.machines.recovery.recovery_world import Donor, World, grown

COMMON = grown([], 3, b"c")
AHEAD = grown(COMMON, 10, b"a")
ENDLESS = grown(COMMON, 400, b"e")
SLOW, LIAR = PeerId("A"), PeerId("B")
PATIENCE_S = 100.0


def _world(donors: dict[str, Donor], latency_s: dict[str, float]) -> World:
    """Whoever takes more than a second gives one entry at a time."""
    world = World(COMMON, donors, patience_s=PATIENCE_S)
    world.latency_s = lambda question: latency_s[question.peer] if isinstance(question, r.AskEntries) else 0.1

    def twist(question: r.Ask, answer: r.Answer) -> r.Answer:
        is_cut = isinstance(answer, r.EntriesCame) and latency_s[question.peer] > 1.0
        return r.EntriesCame(answer.request, answer.entries[:1]) if is_cut else answer  # type: ignore[union-attr]

    world.twist = twist
    return world


@pytest.mark.parametrize("late_s", [2.0, 40.0])
def test_branch_that_is_not_here_when_its_time_is_over_is_not_confirmed(late_s: float) -> None:
    world = _world({LIAR: Donor(ENDLESS)}, {LIAR: late_s})
    began = world.now
    done = world.run()
    assert done.failure and done.unconfirmed == (LIAR,)
    assert world.now - began == pytest.approx(PATIENCE_S)


def test_time_in_which_another_one_is_asked_is_not_its_own() -> None:
    """The first one is put aside for the other one, which is asked for longer than was left of the first one's time."""
    world = _world({SLOW: Donor(AHEAD[:5]), LIAR: Donor(ENDLESS)}, {SLOW: 32.0, LIAR: 35.0})
    done = world.run()
    assert not done.failure and world.log == AHEAD[:5]
    assert not done.unconfirmed and done.unasked == (LIAR,)


@pytest.mark.parametrize("is_aside", [False, True])
def test_time_in_which_we_stand_still_is_nobodys(is_aside: bool) -> None:
    """We do while it is asked (`is_aside`: while the other one is), and find each answer there when we go on."""
    world = _world({SLOW: Donor(AHEAD[:5]), LIAR: Donor(COMMON)}, {SLOW: 32.0, LIAR: 0.1})
    stands_by, cut = LIAR if is_aside else SLOW, world.twist

    def stand_still(question: r.Ask, answer: r.Answer) -> r.Answer | None:
        if question.peer == stands_by:
            world.now = Monotonic(world.now + 10 * PATIENCE_S)
        return cut(question, answer)

    world.twist = stand_still
    world.latency_s = lambda question: 32.0 if question.peer not in (stands_by, LIAR) else 0.0
    assert not world.run().failure
    assert world.log == AHEAD[:5]
