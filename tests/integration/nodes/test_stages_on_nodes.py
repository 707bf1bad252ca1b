"""A site whose second stage trains on a node: the bits of one machine, and what is killed or cut comes back."""

import contextlib
import dataclasses
import json
import re
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dilocoxd.answers.nodes import NodeStage
from dilocoxd.config.hugging_face import canonical_config, sizes
from dilocoxd.config.manifest import load_manifest, manifest_from_tables
from dilocoxd.config.site import ParallelSection, SiteConfig, WorkersSection
from dilocoxd.daemon.settings import trainer_modules
from dilocoxd.daemon.site.interface import ContributionLeftOut, SiteSettings, WorkerChanged
from dilocoxd.ipc.hang_files import collectives_name, stacks_name
from dilocoxd.store.admission import write_secret
from dilocoxd.trainer.checkpoint import newest_complete
from tests.harness.running.run_directories import free_port
from tests.integration.nodes.node_process import NodeProcess, node_process
from tests.integration.nodes.wire_between import WireBetween
from tests.integration.one_site.site_world import World, kill, make_run, running
from tests.integration.one_site.test_outer_parts import one_worker
from tests.unit.models.families import FAMILY_CONFIGS

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
ENTRIES = 3


def site_settings(
    folder: Path, *, on_nodes: bool, has_parts: bool = False, delay: str = "none", tied: int = 0, **cut: int
) -> SiteSettings:
    """Of a site whose trainers are a pipeline of two stages, which `cut` cuts further; `has_parts`: it has an outer
    part on the node too. Without a delay each boundary waits for its entry: nothing depends on time."""
    settings = make_run(folder / "run", stages=2, delay=delay, codec="int4")
    if tied:
        tie_embeddings(settings.run_directory / "run.toml")
    parallel = ParallelSection(pipeline=2, threads_per_rank=1, microbatches=2, **cut)
    site = SiteConfig(parallel=parallel, workers=WorkersSection(outer_nice=0))
    (settings.run_directory / "site.toml").write_text(site.to_toml(), encoding="utf-8")
    write_secret(settings.run_directory / settings.node_key_file, "5a" * 32)
    return dataclasses.replace(
        settings,
        trainer_modules=trainer_modules(load_manifest(settings.run_directory / "run.toml"), site),
        extend_steps_max=0,
        evaluate_every_rounds=2,
        without_one_every=1,
        num_stages=parallel.ranks,
        stage_ranks=parallel.in_stage,
        node_stages=int(on_nodes),
        node_parts=int(on_nodes and has_parts),
        node_address=("127.0.0.1", free_port()),
    )


def tie_embeddings(run_toml: Path) -> None:
    """A model whose first and last stage share a matrix."""
    tables = tomllib.loads(run_toml.read_text())
    table = FAMILY_CONFIGS["llama tied"] | {"vocab_size": 300}
    tables["model"] = {"kind": "hf", "config": canonical_config(table), "seq_len": 16, **sizes(table)}
    run_toml.write_text(manifest_from_tables(tables, source="test").to_toml(), encoding="utf-8")


@contextlib.contextmanager
def node_of(settings: SiteSettings, folder: Path, port: int = 0) -> Iterator[NodeProcess]:
    key = settings.run_directory / settings.node_key_file
    with node_process(port or settings.node_address[1], key, folder, settings.node_parts, num_stages=1) as node:
        yield node


async def trained(settings: SiteSettings) -> tuple[list[bytes], list[float], tuple[float, float]]:
    """Payloads of the first entries, the losses of the steps of the first phases, and what the first contribution that
    was looked at added to the validation loss, with its error. Each entry has two, which are one: whoever is drawn."""
    async with running(settings) as world:
        world.has_twin = True
        await world.until(lambda: len(world.committed) >= ENTRIES and world.of(ContributionLeftOut), "entries, a look")
        losses = [step.loss for step in world.steps[: ENTRIES * settings.inner_steps]]
        look = world.of(ContributionLeftOut)[0]
    assert look.round == settings.evaluate_every_rounds
    return [payload for _, payload in world.committed[:ENTRIES]], losses, (look.measured.added, look.measured.deviation)


@pytest.mark.parametrize(
    ("cut", "ranks"),
    [
        ({}, "rank 1 of 2"),
        pytest.param({"shard": 2}, "ranks 2 to 3 of 4", marks=pytest.mark.slow),
        pytest.param({"replicate": 2}, "ranks 2 to 3 of 4", marks=pytest.mark.slow),
        pytest.param({"tensor": 2}, "ranks 2 to 3 of 4", marks=pytest.mark.slow),
        pytest.param({"tied": 1}, "rank 1 of 2", marks=pytest.mark.slow),
    ],
)
async def test_pipeline_on_two_machines_has_the_bits_of_one(tmp_path: Path, cut: dict[str, int], ranks: str) -> None:
    payloads, losses, look = await trained(site_settings(tmp_path / "one", on_nodes=False, **cut))
    settings = site_settings(tmp_path / "two", on_nodes=True, has_parts=True, **cut)
    with node_of(settings, tmp_path / "node") as node:
        assert await trained(settings) == (payloads, losses, look)
        assert f"stage place 0: runs trainer {ranks}" in node.said()
        assert node.end() == 0
    assert len(set(losses)) == len(losses) == ENTRIES * settings.inner_steps, "it trains"
    assert look[0] and look[1], "something was left out"


async def test_trainer_node_or_link_that_is_lost_ends_a_generation_and_no_more(tmp_path: Path) -> None:
    settings = site_settings(tmp_path, on_nodes=True, delay="phase")
    async with WireBetween(settings.node_address[1]) as wire:
        with node_of(settings, tmp_path / "node", wire.port) as node:
            async with running(settings) as world:
                budget = world.site.trainer.restarts
                await trains_again(world, 1)
                (trainer,), here = node.trainers(), stage_of(world).node
                kill(trainer, signal.SIGKILL)
                await trains_again(world, 2)
                assert budget.left == settings.restarts_max - 1, "a trainer has failed"
                cut: list[str] = []

                def strike(where: str, round_index: int) -> None:
                    if where == "reduce" and not cut:
                        cut.append(where)
                        wire.cut()

                world.on_commit = strike
                await trains_again(world, 3)
                assert cut, "in the middle of an exchange"
                node.kill()
                await world.until(lambda: stage_of(world).state != "running", "the head misses the node")
                with node_of(settings, tmp_path / "node", wire.port):
                    await trains_again(world, 4)
                    assert stage_of(world).state == "running"
                    assert budget.left == settings.restarts_max - 1, "nobody has failed"
                    assert await world.replay() == one_worker(world).anchor_sha256
    failed, *cuts = lost_trainers(world)[:3]
    assert f"stage rank 1 on node {here}" in failed or "stage rank 0" in failed, "whoever said it first"
    assert len(cuts) == 2 and all(f"the connection ended to node {here}" in told for told in cuts)


async def test_hang_is_told_of_ranks_on_nodes_too(tmp_path: Path) -> None:
    """The head's rank stands still, and tells nothing; where the one on the node waits for it lies at the head."""
    settings = site_settings(tmp_path, on_nodes=True, delay="phase")
    settings = dataclasses.replace(settings, trainer_silence_factor=1.0, trainer_silence_min_s=6.0)
    with node_of(settings, tmp_path / "node"):
        async with running(settings) as world:
            await trains_again(world, 1)
            kill(world.site.trainer.pids[0], signal.SIGSTOP)
            await world.until(lambda: lost_trainers(world), "the silence is noticed")
    told = lost_trainers(world)[0]
    found = re.search(r"where each rank was: (logs/hangs/\S+-generation-\d+)", told)
    assert found is not None, told
    folder = settings.run_directory / found[1]
    assert "dilocoxd/trainer/loop.py" in (folder / stacks_name(1)).read_text()
    assert json.loads((folder / collectives_name(1)).read_text())["cpu"]["entries"]
    (kept,) = (tmp_path / "node" / "stages").glob("*/logs/hangs/*-generation-*")
    assert (kept / stacks_name(1)).exists()


async def trains_again(world: World, generation: int) -> None:
    """In so many generations, and entries are made of it."""
    await world.until(lambda: world.site.trainer.generation >= generation, f"generation {generation}")
    done = len(world.committed)
    await world.until(lambda: len(world.committed) >= done + 2, f"2 entries of generation {generation}")


def stage_of(world: World) -> NodeStage:
    nodes = world.site.status().nodes
    assert nodes is not None
    return nodes.stages[0]


def lost_trainers(world: World) -> list[str]:
    """What was said of generations that were lost."""
    return [event.reason for event in world.of(WorkerChanged) if event.role == "trainer" and event.state == "lost"]


async def test_head_that_starts_again_goes_on_with_the_moments_of_all_stages(tmp_path: Path) -> None:
    settings = site_settings(tmp_path, on_nodes=True)
    with node_of(settings, tmp_path / "node") as node:
        async with running(settings) as world:
            await world.until(lambda: len(world.committed) >= ENTRIES, "entries")
        folder = settings.run_directory / "site" / "trainer"
        newest = newest_complete(folder)
        assert newest is not None, "files of all stages are at the head"
        steps = int(newest.name)
        assert steps >= ENTRIES * settings.inner_steps
        async with running(settings) as world:
            await world.until(lambda: world.steps, "a step")
            assert world.steps[0].global_step == steps + 1
            node.kill()
            await world.until(lambda: lost_trainers(world), "the head misses the node")
            # And it leaves at once, though it waits for a node.
