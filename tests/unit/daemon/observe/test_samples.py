"""What `dilocoxd status` says of the samples that the model has read."""

import random

from dilocoxd.answers.status import Samples
from dilocoxd.cli.screens.status import samples
from dilocoxd.daemon.chain.reading_plan import ReadingPlan
from dilocoxd.daemon.observe.status import samples_of
from dilocoxd.ids import PeerId, PhaseId, RoundIndex
from dilocoxd.machines.reading.leases import LeaseRules
from dilocoxd.wire.entry import Contribution
from tests.unit.machines.reading.world import SEQ_LEN, ZERO, World


def test_samples_that_two_newcomers_read_at_one_door_are_counted_as_twice() -> None:
    world = World(random.Random(0), LeaseRules(SEQ_LEN, 8))
    plan = ReadingPlan(world.rules, PeerId("a"))
    assert samples_of(plan.leases) == Samples(taken=0, twice=0)
    for peer in ("a", "b"):
        work = Contribution(PeerId(peer), PhaseId(0), RoundIndex(0), 1, SEQ_LEN * 5, ZERO)
        world.append([work], [])
        plan.extend(world.entries[-1])
    assert samples_of(plan.leases) == Samples(taken=5, twice=5)
    assert samples(samples_of(plan.leases)) == "5 read and 5 a second time"


def test_run_on_one_text_tells_nothing() -> None:
    assert samples_of(ReadingPlan(None, PeerId("a")).leases) is None
    assert samples(None) == ""
    assert samples(Samples(taken=1234, twice=0)) == "1,234 read, none twice"
