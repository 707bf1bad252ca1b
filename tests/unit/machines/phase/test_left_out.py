"""Which entries are evaluated without one contribution too: those that are evaluated, and of these some, by lot."""

import random
from collections import Counter
from dataclasses import replace

from dilocoxd.ids import RoundIndex
from dilocoxd.machines.phase.flight import without
from dilocoxd.machines.phase.settings import PhaseSettings
from dilocoxd.wire.local import outer_worker as local, trainer as local_trainer
from tests.unit.machines.phase.site_model import SiteModel

EVALUATES = PhaseSettings("phase", 4, 2, 1, without_one_every=4, save_every_rounds=0)
NUM_DRAWS = 4000


def summed(num_members: int) -> tuple[local.OwnedSegment, ...]:
    """One segment."""
    return (local.OwnedSegment(0, 0, tuple(local.Share(slot, 10) for slot in range(-1, num_members - 1))),)


def drawn(settings: PhaseSettings, owned: tuple[local.OwnedSegment, ...], state: int = 6) -> Counter[tuple[int, ...]]:
    lot = random.Random(1)
    return Counter(without(settings, lot, RoundIndex(state - 1), owned) for _ in range(NUM_DRAWS))


def test_one_entry_of_so_many_and_each_contribution_as_often_as_any_other() -> None:
    found = drawn(EVALUATES, summed(3))
    assert set(found) == {(), (0,), (1,), (2,)}
    assert all(0.8 < found[place,] / (NUM_DRAWS / 12) < 1.2 for place in range(3))


def test_nobody_is_left_out_where_nothing_could_be_measured() -> None:
    nobody = {()}
    always = replace(EVALUATES, without_one_every=1)
    assert set(drawn(always, ())) == nobody, "nothing was summed here"
    assert set(drawn(always, summed(1))) == nobody, "there is nothing but this contribution"
    assert set(drawn(replace(EVALUATES, without_one_every=0), summed(3))) == nobody
    assert set(drawn(replace(always, evaluate_every_rounds=0), summed(3))) == nobody
    assert set(drawn(replace(always, evaluate_every_rounds=4), summed(3))) == nobody, "state 6 is not evaluated"
    assert set(drawn(replace(always, evaluate_every_rounds=3), summed(3))) == {(0,), (1,), (2,)}


def test_what_is_looked_at_is_what_the_trainers_evaluate() -> None:
    site = SiteModel(replace(EVALUATES, evaluate_every_rounds=3, without_one_every=1))
    site.train_from(0)
    site.said.clear()
    for _ in range(8):
        site.settle_down(until_due=True)
        site.commit(is_included=True, owned=summed(2))
        site.settle_down()
    looked_at = [one.round + 1 for one in site.outer_done if isinstance(one, local.Settle) and one.without]
    evaluated = [one.round for one in site.said if isinstance(one, local_trainer.Evaluate)]
    assert looked_at == evaluated == [3, 6]
