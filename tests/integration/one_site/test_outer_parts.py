"""A site whose outer worker is three processes: it trains as any other, and one of them may be killed at any moment."""

import dataclasses
import signal
from pathlib import Path

import pytest

from dilocoxd.config.manifest import load_manifest
from dilocoxd.daemon.site.interface import WorkerChanged
from dilocoxd.daemon.workers.outer_pool import OuterPool
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local.outer_worker import ApplyResult, LoadState, StateReady
from tests.harness.outer_worker.in_process import InnerWorker
from tests.integration.one_site.site_world import World, kill, make_run, running

pytestmark = pytest.mark.processes
NUM_PARTS = 3


def one_worker(world: World) -> StateReady:
    """The state that an outer worker of one process reaches with the same entries."""
    folder = world.settings.run_directory
    worker = InnerWorker(make_plan(load_manifest(folder / "run.toml")))
    state: StateReady = worker.do(LoadState, "")
    for entry, payload in world.committed:
        path = folder / f"payload-{entry.round}"
        path.write_bytes(payload)
        state = worker.do(ApplyResult, entry.round, str(path), 0, entry.lowrank_r)
    return state


@pytest.mark.parametrize("moment", ["reduce", "apply"])
async def test_part_killed_at_any_moment_costs_no_phase_and_no_bit(tmp_path: Path, moment: str) -> None:
    settings = dataclasses.replace(make_run(tmp_path / "run", delay="phase", codec="int4"), outer_parts=NUM_PARTS)
    async with running(settings) as world:
        pool = world.site.outer
        assert isinstance(pool, OuterPool)
        first = world.site.status().workers["outer"]
        assert first.state == "running" and len(set(first.part_pids)) == NUM_PARTS == len(first.pids)
        killed: list[int] = []

        def strike(where: str, round_index: int) -> None:
            if where == moment and round_index in (1, 3) and round_index not in killed:
                killed.append(round_index)
                kill(pool.parts[round_index % NUM_PARTS].pid, signal.SIGKILL)

        world.on_commit = strike
        await world.until(lambda: len(world.committed) >= 5, "5 entries")
        await world.site.write_snapshot(str(tmp_path / "snapshot"))
        lost = [event.reason for event in world.of(WorkerChanged) if event.role == "outer" and event.state == "lost"]
        assert len(lost) == len(killed) == 2 and lost[0].startswith("part 1: ") and lost[1].startswith("part 0: ")
        assert await world.replay() == one_worker(world).anchor_sha256
    assert world.offered[:5] == [0, 1, 2, 3, 4], "no phase is lost"
