"""A site with outer parts on nodes: the bits of one worker, whatever is killed or cut, and what is lost with a node."""

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.site.interface import SiteEvent, SiteSettings, WorkerChanged
from dilocoxd.daemon.site.site import LocalSite
from dilocoxd.daemon.workers.outer_worker import first_error
from dilocoxd.errors import WorkerError
from dilocoxd.machines.phase.settings import StartingPoint
from dilocoxd.store.admission import write_secret
from dilocoxd.store.tensor_header import read_header
from dilocoxd.telemetry.cluster import FeedbackMissing
from dilocoxd.wire.local.outer_worker import RestoreSite, SiteDone
from tests.harness.running.run_directories import free_port
from tests.integration.nodes.node_process import NodeProcess, node_process
from tests.integration.nodes.wire_between import WireBetween
from tests.integration.one_site.site_world import WAIT_S, World, kill, make_run, running
from tests.integration.one_site.test_outer_parts import one_worker

pytestmark = pytest.mark.processes
LOW_RANK = {"codec": "int4", "transform": "lowrank", "lowrank_r": 2}


def head_settings(folder: Path, node_parts: int, **strategy: Any) -> SiteSettings:
    """Of a head with one part of its own."""
    settings = make_run(folder / "run", delay="phase", **(strategy or {"codec": "int4"}))
    write_secret(settings.run_directory / settings.node_key_file, "5a" * 32)
    address = ("127.0.0.1", free_port())
    lowrank_r = strategy.get("lowrank_r", 0)
    return dataclasses.replace(settings, node_parts=node_parts, node_address=address, lowrank_r=lowrank_r)


@contextlib.contextmanager
def node_of(settings: SiteSettings, folder: Path, num_parts: int = 1, port: int = 0) -> Iterator[NodeProcess]:
    key = settings.run_directory / settings.node_key_file
    with node_process(port or settings.node_address[1], key, folder, num_parts) as node:
        yield node


def losses(world: World) -> list[str]:
    """What was said of outer parts that were lost."""
    return [event.reason for event in world.of(WorkerChanged) if event.role == "outer" and event.state == "lost"]


@pytest.mark.parametrize(("moment", "strategy"), [("reduce", {"codec": "int4"}), ("apply", LOW_RANK)])
async def test_part_on_a_node_killed_at_any_moment_costs_no_phase_and_no_bit(
    tmp_path: Path, moment: str, strategy: dict[str, Any]
) -> None:
    settings = head_settings(tmp_path, 2, **strategy)
    with node_of(settings, tmp_path / "node", 2) as node:
        async with running(settings) as world:
            killed: list[int] = []

            def strike(where: str, round_index: int) -> None:
                if where == moment and round_index in (1, 3) and round_index not in killed:
                    killed.append(round_index)
                    kill(node.parts()[round_index // 2], signal.SIGKILL)

            world.on_commit = strike
            await world.until(lambda: len(world.committed) >= 5, "5 entries")
            saved = await world.site.write_snapshot(str(tmp_path / "snapshot"))
            assert len(losses(world)) == len(killed) == 2
            assert await world.replay() == one_worker(world).anchor_sha256
            state = await world.site.load_state(str(tmp_path / "snapshot"))
            assert state.is_loaded and state.round == saved.round, "what all parts wrote all parts load"
        assert node.end() == 0
    assert world.offered[:5] == [0, 1, 2, 3, 4], "no phase is lost"


async def test_link_that_is_cut_again_and_again_costs_no_bit(tmp_path: Path) -> None:
    settings = head_settings(tmp_path, 1)
    async with WireBetween(settings.node_address[1]) as wire:
        with node_of(settings, tmp_path / "node", port=wire.port):
            async with running(settings) as world:
                cut: list[tuple[str, int]] = []

                def strike(where: str, round_index: int) -> None:
                    if round_index in (1, 2) and (where, round_index) not in cut:
                        cut.append((where, round_index))
                        wire.cut()

                world.on_commit = strike
                await world.until(lambda: len(world.committed) >= 4, "4 entries")
                assert len(cut) == 4 and len(losses(world)) >= 2
                budget = world.site.outer.restarts
                assert budget.total >= 2 and budget.left == settings.restarts_max, "a link that flaps ends no daemon"
                assert await world.replay() == one_worker(world).anchor_sha256
    assert world.offered[:4] == [0, 1, 2, 3]


async def test_node_that_lost_its_memory_ends_the_site_which_starts_again_from_its_files(tmp_path: Path) -> None:
    settings = head_settings(tmp_path, 1)
    with node_of(settings, tmp_path / "node") as node:
        with pytest.raises(BaseExceptionGroup) as ended:
            async with running(settings) as world:
                await world.until(lambda: len(world.committed) >= 2, "2 entries")
                node.kill()
                with node_of(settings, tmp_path / "node"):
                    async with asyncio.timeout(WAIT_S):
                        await asyncio.Event().wait()
        reason = first_error(ended.value)
        assert isinstance(reason, WorkerError) and "was started anew" in str(reason)
    with node_of(settings, tmp_path / "node"):
        assert await restored(settings) == (True, 0, []), "error feedback of all segments is back"
    with node_of(settings, tmp_path / "another"):
        is_restored, missing, told = await restored(settings)
        assert is_restored and missing > 0, "a node without the file: its segments start at zero, and it says so"
        assert told == [FeedbackMissing(values=missing, reason=told[0].reason)] and "start at zero" in told[0].reason


async def restored(settings: SiteSettings) -> tuple[bool, int, list[FeedbackMissing]]:
    """What a site that starts again gets back of its error feedback, and what it tells of that."""
    path = settings.run_directory / "site" / "feedback.safetensors"
    phase = int(read_header(path)[2]["phase"])
    told: list[SiteEvent] = []
    async with opened(settings, told.append) as site:
        await site.load_state("")
        answer: SiteDone = await site.outer.ask(RestoreSite(0, str(path), phase), timeout_s=WAIT_S)
        await site.begin(StartingPoint())
    return answer.is_restored, answer.missing, [event for event in told if isinstance(event, FeedbackMissing)]


@contextlib.asynccontextmanager
async def opened(settings: SiteSettings, emit: Callable[[SiteEvent], None]) -> AsyncIterator[LocalSite]:
    """A site that does not train yet."""
    site = LocalSite(dataclasses.replace(settings, is_training=False), emit)
    async with asyncio.TaskGroup() as group:
        main = group.create_task(site.run(), name="site")
        async with asyncio.timeout(WAIT_S):
            await site.ready()
            yield site
            await site.leave()
            await main
