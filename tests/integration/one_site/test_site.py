"""One site with real worker processes: phases follow each other in every delay mode, and any worker may be killed."""

import asyncio
import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.site.interface import AnchorAdopted, WorkerChanged
from dilocoxd.daemon.site.record import load_record
from dilocoxd.daemon.site.saved_feedback import read_saved
from dilocoxd.errors import ConfigError, WorkerError
from dilocoxd.ipc.process_tree import TREE_VARIABLE, find_tree
from dilocoxd.machines.phase.outputs import OfferContribution
from dilocoxd.telemetry.catalogue import PhaseStarted
from tests.integration.one_site.site_world import World, kill, make_run, running

pytestmark = pytest.mark.processes


def check_history(world: World) -> None:
    """No phase twice, in order; claims are right."""
    assert world.offered == sorted(set(world.offered))
    started = [event.phase for event in world.of(PhaseStarted)]
    assert started == sorted(set(started))
    for offer in world.of(OfferContribution):
        assert offer.tokens == 8 * offer.inner_steps


async def check_bits(world: World) -> None:
    """Applying the same payloads to genesis again leads to the same anchor."""
    digest = await world.replay()
    assert world.state is not None and len(world.committed) == world.state.round
    assert digest == world.state.anchor_sha256


@pytest.mark.parametrize("delay", ["none", "phase", "arrival"])
async def test_phases_follow_each_other(tmp_path: Path, delay: str) -> None:
    async with running(make_run(tmp_path / "run", delay=delay)) as world:
        await world.until(lambda: len(world.committed) >= 6, "6 entries")
        status = world.site.status()
        assert status.workers["outer"].state == "running" and status.workers["trainer"].state == "running"
        await check_bits(world)
    check_history(world)
    how = {event.how for event in world.of(AnchorAdopted)}
    assert how == {"none": {"start", "replace"}, "phase": {"start"}, "arrival": {"start", "merge"}}[delay]
    bases = [(offer.phase, offer.base_round) for offer in world.of(OfferContribution)][:3]
    assert bases == ([(0, 0), (1, 0), (2, 1)] if delay == "phase" else [(0, 0), (1, 1), (2, 2)])
    assert world.bases_at_boundaries and None not in world.bases_at_boundaries, "a status without a base of the phase"
    for name in ("outer", "trainer-1"):
        first = (tmp_path / "run" / "logs" / f"{name}.log").read_text().splitlines()[0]
        assert first.endswith("generation 1 of QmTest"), "whose log is this?"
    assert find_tree(os.environ[TREE_VARIABLE]) == []


@pytest.mark.parametrize(
    ("delay", "moment"), [("phase", "reduce"), ("phase", "apply"), ("arrival", "apply"), ("arrival", "training")]
)
async def test_outer_worker_killed_at_any_moment_costs_no_phase(tmp_path: Path, delay: str, moment: str) -> None:
    async with running(make_run(tmp_path / "run", delay=delay)) as world:
        killed: list[int] = []

        def strike(where: str, round_index: int) -> None:
            if where == moment and round_index in (1, 3) and round_index not in killed:
                killed.append(round_index)
                kill(world.site.outer.pid, signal.SIGKILL)

        world.on_commit = strike
        if moment == "training":
            await world.until(lambda: len(world.committed) >= 1, "one entry")
            kill(world.site.outer.pid, signal.SIGKILL)
        await world.until(lambda: len(world.committed) >= 6, "6 entries")
        assert world.site.outer.restarts.total >= 1
        await check_bits(world)
    check_history(world)
    assert world.offered[:6] == [0, 1, 2, 3, 4, 5], "no phase is lost"


async def test_trainer_killed_loses_its_phase_only(tmp_path: Path) -> None:
    async with running(make_run(tmp_path / "run", delay="arrival")) as world:
        for number in (1, 2, 3):
            await world.until(lambda n=number: len(world.committed) >= 2 * n, "two more entries")
            before = world.site.trainer.generation
            kill(world.site.trainer.pids[-1], signal.SIGKILL)
            await world.until(lambda b=before: world.site.trainer.generation > b, "the next generation")
        await world.until(lambda: len(world.committed) >= 10, "10 entries")
        await check_bits(world)
    check_history(world)
    assert len([e for e in world.of(WorkerChanged) if e.role == "trainer" and e.state == "lost"]) == 3


async def test_trainer_that_hangs_is_noticed_and_replaced(tmp_path: Path) -> None:
    settings = make_run(tmp_path / "run", delay="phase")
    settings = dataclasses.replace(
        settings,
        trainer_environment={**settings.trainer_environment, "PACE_FAULT": "hang_in_phase_1"},
        trainer_silence_min_s=1.0,
    )
    async with running(settings) as world:

        def hangs() -> list[str]:
            reasons = [e.reason for e in world.of(WorkerChanged) if e.role == "trainer" and e.state == "lost"]
            return [reason for reason in reasons if "no sign of life" in reason]

        # On a busy machine one may be silent for a second before it hangs, while it owes something else.
        await world.until(lambda: sum("waiting for an inner step" in one for one in hangs()) >= 2, "two hangs")
        await world.until(lambda: world.site.trainer.generation > len(hangs()), "the generation after the last one")


async def test_frozen_outer_worker_is_noticed_and_replaced(tmp_path: Path) -> None:
    settings = dataclasses.replace(make_run(tmp_path / "run", delay="phase"), outer_silence_max_s=3.0)
    async with running(settings) as world:
        await world.until(lambda: len(world.committed) >= 2, "two entries")
        frozen, before = world.site.outer.pid, len(world.committed)
        os.kill(frozen, signal.SIGSTOP)
        await world.until(lambda: len(world.committed) >= before + 3, "three more entries")
        lost = [e.reason for e in world.of(WorkerChanged) if e.role == "outer" and e.state == "lost"]
        assert lost and all("while it owed an answer" in reason for reason in lost)
        assert frozen not in world.site.outer.pids
        await check_bits(world)


@pytest.mark.parametrize(
    ("fault", "error", "text", "limits"),
    [
        ("garbage", WorkerError, "makes no sense", {"restarts_max": 1}),
        # The fork server, which is a fork itself, gets no more time either.
        ("never_ready", WorkerError, "while it started", {"restarts_max": 0, "trainer_start_timeout_s": 20.0}),
        ("refuse_config", ConfigError, "num_layers", {"restarts_max": 1}),
    ],
)
async def test_trainer_that_cannot_work_ends_the_site_with_a_reason(
    tmp_path: Path, fault: str, error: type[Exception], text: str, limits: dict[str, Any]
) -> None:
    settings = make_run(tmp_path / "run", delay="phase")
    settings = dataclasses.replace(
        settings, trainer_environment={**settings.trainer_environment, "PACE_FAULT": fault}, **limits
    )
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(settings) as world:
            await world.until(lambda: len(world.committed) >= 1, "an entry, which cannot come")
    group = caught.value.subgroup(error)
    assert group is not None and text in str(group.exceptions[0] if group.exceptions else group) + repr(group)
    assert find_tree(os.environ[TREE_VARIABLE]) == []


async def test_phase_numbers_and_feedback_survive_a_restart_of_the_site(tmp_path: Path) -> None:
    settings = make_run(tmp_path / "run", delay="phase", codec="int8")
    async with running(settings) as world:
        await world.until(lambda: len(world.committed) >= 3, "3 entries")
    first = world.offered
    async with running(settings) as world:
        await world.until(lambda: len(world.committed) >= 3, "3 entries")
    assert max(first) < min(world.offered)
    assert (tmp_path / "run" / "site" / "feedback.safetensors").exists()


async def test_leaving_ends_in_seconds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = make_run(tmp_path / "run", delay="arrival")
    clock = asyncio.get_running_loop().time
    async with running(settings) as world:
        await world.until(lambda: len(world.committed) >= 2, "2 entries")
        began = clock()
    assert clock() - began < 20.0
    assert find_tree(os.environ[TREE_VARIABLE]) == []
    assert not (tmp_path / "run" / "sock").exists()


async def test_leaving_while_the_outer_worker_is_down_saves_the_feedback(tmp_path: Path) -> None:
    settings = make_run(tmp_path / "run", delay="none", codec="int8")
    settings = dataclasses.replace(settings, save_feedback_every_rounds=0)
    file = tmp_path / "run" / "site" / "feedback.safetensors"
    async with running(settings) as world:
        await world.until(lambda: len(world.committed) >= 2, "2 entries")
        assert world.committer is not None
        world.committer.cancel()
        await world.until(lambda: len(world.offered) >= 3, "an offer that nobody takes: the trainers wait for its fate")
        assert not file.exists(), "it is written only when the site leaves"
        world.site.outer.restarts.backoff_first_s = 3.0  # the trainers have stopped before it is back
        kill(world.site.outer.pid, signal.SIGKILL)
        await world.until(lambda: [e for e in world.of(WorkerChanged) if e.role == "outer" and e.state == "lost"], "it")
    saved = read_saved(file)
    assert saved is not None and (saved.phase, saved.in_flight) == (1, 2)
    assert load_record(settings.run_directory).last_settled is None, "the entries say it, and no disk was waited for"
