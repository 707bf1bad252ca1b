"""A node in a network of its own: where the network between it and its head goes silent, both notice by themselves."""

import asyncio
import contextlib
import dataclasses
import os
from pathlib import Path

import pytest

from tests.harness.internet.namespaces import standing_in
from tests.harness.running.network_namespaces import Network
from tests.integration.nodes.node_process import WAIT_S, NodeProcess, node_process
from tests.integration.nodes.test_parts_on_nodes import head_settings, losses
from tests.integration.nodes.test_stages_on_nodes import lost_trainers, site_settings, stage_of, trains_again
from tests.integration.one_site.site_world import World, running
from tests.integration.one_site.test_outer_parts import one_worker

pytestmark = [pytest.mark.processes, pytest.mark.slow]


async def test_silence_between_head_and_node_costs_no_phase_and_no_bit(tmp_path: Path) -> None:
    settings = head_settings(tmp_path, 1)
    key = settings.run_directory / settings.node_key_file
    with Network(f"nd{os.getpid() % 10000}", ["head", "node"]) as network, contextlib.ExitStack() as stack:
        host, port = network.address("head"), settings.node_address[1]
        node = stack.enter_context(
            node_process(port, key, tmp_path / "node", host=host, namespace=network.namespace("node"))
        )
        with standing_in(network.namespace("head")):
            async with running(dataclasses.replace(settings, node_address=(host, port)), is_cold=True) as world:
                is_cut: list[int] = []

                def strike(where: str, round_index: int) -> None:
                    if where == "reduce" and round_index == 1 and not is_cut:
                        is_cut.append(round_index)
                        network.cut("node")

                world.on_commit = strike
                await world.until(lambda: losses(world), "the silence is noticed")
                assert len(world.committed) == 1, "the round waits for its part"
                network.heal("node")
                await world.until(lambda: len(world.committed) >= 3, "3 entries")
                assert await world.replay() == one_worker(world).anchor_sha256
                assert world.offered[:3] == [0, 1, 2]
                assert "part place 0: runs outer part 1 of 2" in node.said()


async def test_silence_between_two_stages_is_borne_until_another_node_has_room(tmp_path: Path) -> None:
    settings = site_settings(tmp_path, on_nodes=True, delay="phase")
    # So long that TCP's growing pauses do not come near them, on a machine that notices a silence late.
    settings = dataclasses.replace(settings, node_grace_s=600.0, trainer_silence_min_s=1200.0)
    key = settings.run_directory / settings.node_key_file
    with Network(f"ns{os.getpid() % 10000}", ["head", "node", "spare"]) as network, contextlib.ExitStack() as stack:
        host, port = network.address("head"), settings.node_address[1]

        def started(name: str) -> NodeProcess:
            space = network.namespace(name)
            return stack.enter_context(
                node_process(port, key, tmp_path / name, 0, num_stages=1, host=host, namespace=space)
            )

        node = started("node")
        with standing_in(network.namespace("head")):
            async with running(dataclasses.replace(settings, node_address=(host, port)), is_cold=True) as world:
                await trains_again(world, 1)
                trainers = node.trainers()
                network.cut("node")
                await until_stage(world, "waiting")
                network.heal("node")
                await until_stage(world, "running")
                await trains_again(world, 1)
                assert not lost_trainers(world) and node.trainers() == trainers, "they went on where they were"
                assert [step.global_step for step in world.steps] == list(range(1, len(world.steps) + 1))
                network.cut("node")
                await until_stage(world, "waiting")
                await asyncio.to_thread(started, "spare")
                await trains_again(world, 2)
                assert node.trainers() == trainers, "they cannot know"
                network.heal("node")
                await asyncio.to_thread(node.until, lambda: not node.trainers(), "trainers of the node have ended")
                assert await world.replay() == one_worker(world).anchor_sha256
    assert len(lost_trainers(world)) == 1 and "said nothing for" in lost_trainers(world)[0]
    assert world.site.trainer.restarts.left == settings.restarts_max, "nobody has failed"


async def until_stage(world: World, state: str) -> None:
    """Nothing is told of it."""
    async with asyncio.timeout(WAIT_S):
        while stage_of(world).state != state:
            await asyncio.sleep(0.05)
