"""A whole site with nothing replaced: real trainers of two stages, real outer worker, the daemon's real site."""

import asyncio
import dataclasses
import signal
from pathlib import Path

import pytest

from dilocoxd.telemetry.catalogue import ValidationMeasured
from tests.integration.one_site.site_world import REAL_PIPELINE, kill, make_run, running

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("delay", ["none", "phase", "arrival"])
async def test_two_stages_learn_through_the_outer_worker(tmp_path: Path, delay: str) -> None:
    settings = make_run(tmp_path / "site", stages=2, delay=delay)
    settings = dataclasses.replace(settings, trainer_modules=REAL_PIPELINE, evaluate_every_rounds=2)
    clock = asyncio.get_running_loop().time
    async with running(settings) as world:
        began = clock()
        await world.until(lambda: len(world.of(ValidationMeasured)) >= 4, "four validation losses")
        losses = [event.validation_loss for event in world.of(ValidationMeasured)]
        assert losses[3] < 0.9 * losses[0]
        assert 0 < world.steps[-1].idle_seconds < clock() - began, "it waits less than it is there"
        assert world.state is not None
        assert await world.replay() == world.state.anchor_sha256


async def test_killed_stage_is_replaced_and_training_goes_on(tmp_path: Path) -> None:
    settings = make_run(tmp_path / "site", stages=2, delay="arrival")
    settings = dataclasses.replace(settings, trainer_modules=REAL_PIPELINE)
    async with running(settings) as world:
        await world.until(lambda: len(world.committed) >= 2, "two entries")
        kill(world.site.trainer.pids[-1], signal.SIGKILL)
        await world.until(lambda: world.site.trainer.generation == 2, "the next generation")
        seen = len(world.steps)
        await world.until(lambda: len(world.steps) > seen + 8, "further steps")
        # Moments and data position come from the checkpoint of a boundary: nothing starts from zero again.
        assert world.steps[seen].global_step > settings.inner_steps
