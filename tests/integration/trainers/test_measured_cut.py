"""A pipeline of two real processes, one of which is slow: it is told which cut is faster, and the next start has it."""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from dilocoxd.config.site import ParallelSection, SiteConfig
from dilocoxd.daemon.observe.alert_rules import UNEVEN_S
from dilocoxd.daemon.observe.progress import progress
from dilocoxd.daemon.site.progress import SiteProgress
from dilocoxd.daemon.workers.forked import PIPELINE_MODULE
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.trainer.parallel.measured_cut import STEPS_MIN
from dilocoxd.wire.local import trainer as local_trainer
from tests.harness.outer_worker.forks import TRAINER, Forks
from tests.integration.trainers import slow_rank
from tests.integration.trainers.daemon_side import TrainerSite
from tests.unit.daemon.observe.test_alert_rules import World
from tests.unit.daemon.observe.test_progress import OWN, SCHEDULE

pytestmark = pytest.mark.processes
LAYERS = 4


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(TRAINER, PIPELINE_MODULE) as started:
        yield started


def measured(site: TrainerSite, phase: int) -> SiteProgress:
    """What a daemon has heard after a phase of a new generation, which then ends with a checkpoint."""
    heard = SiteProgress()
    site.launch(slow_rank.__name__)
    site.start_training(phase=phase, inner_steps=STEPS_MIN)
    for _ in range(STEPS_MIN):
        heard.take(site.expect(local_trainer.StepDone))
    site.expect(local_trainer.BoundaryDue)
    site.send(local_trainer.CloseBoundary("keep", RoundIndex(0), PhaseId(phase + 1), 1))
    site.expect(local_trainer.BoundaryClosed)
    site.expect(local_trainer.BoundaryDue)
    site.stop_training()
    site.hang_up()
    return heard


def alert_of(heard: SiteProgress) -> str:
    """What stands on the screens of such a site; empty: nothing."""
    world = World()
    found = progress(replace(OWN, stages=heard.stages), SCHEDULE, [], [])
    world.change(progress__stages=found.stages, phase__step_seconds=heard.step_seconds)
    world.wait(UNEVEN_S + 10)
    return world.texts["stages_uneven"]


def layers_of(site: TrainerSite, rank: int) -> set[int]:
    """Whose moments this rank wrote last."""
    newest = max((site.folder / "site" / "trainer").iterdir())
    with safe_open(newest / f"stage-{rank}-of-2.safetensors", "pt") as file:
        return {int(found[1]) for found in (re.search(r"layers\.(\d+)\.", key) for key in list(file.keys())) if found}


@pytest.mark.remedy("alert:stages_uneven")
def test_a_slow_stage_has_fewer_layers_after_the_next_start(tmp_path: Path, forks: Forks) -> None:
    parallel = ParallelSection(threads_per_rank=1, stages=2, microbatches=2, layers_per_stage=(2, 2), measured_cut=True)
    site = TrainerSite(tmp_path / "site", forks, model={"num_layers": LAYERS}, site=SiteConfig(parallel=parallel))
    try:
        before = measured(site, 0)
        assert (layers_of(site, 0), layers_of(site, 1)) == ({0, 1}, {2, 3})
        line = re.search(r"`(layers_per_stage = .*)` under \[parallel\]", alert_of(before))
        assert line is not None
        by_hand = ParallelSection(**{**tomllib.loads(line[1]), "pipeline": 2})
        assert by_hand.layers_per_stage == (3, 1)
        after = measured(site, 2)
        assert (layers_of(site, 0), layers_of(site, 1)) == ({0, 1, 2}, {3})
        assert after.global_step == 2 * STEPS_MIN + 1, "moments came along, whoever had them"
        assert not alert_of(after), "it is as even as four layers allow"
        assert before.stages is not None
        assert after.stages is not None
        assert after.stages.seconds[1] < 0.75 * before.stages.seconds[1]
    finally:
        site.close()
