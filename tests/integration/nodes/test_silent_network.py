"""A node in a network of its own: where the network between it and its head goes silent, both notice by themselves."""

import asyncio
import contextlib
import dataclasses
import os
from pathlib import Path

import pytest

from tests.harness.internet.namespaces import standing_in
from tests.harness.running.network_namespaces import Network
from tests.integration.nodes.node_process import node_process
from tests.integration.nodes.test_parts_on_nodes import head_settings, losses
from tests.integration.nodes.test_stages_on_nodes import lost_trainers, site_settings, stage_of, trains_again
from tests.integration.one_site.site_world import running
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
                assert "runs outer part 1/2" in node.said()


async def test_silence_between_two_stages_ends_both_and_they_train_again(tmp_path: Path) -> None:
    settings = site_settings(tmp_path, on_nodes=True, delay="phase")
    key = settings.run_directory / settings.node_key_file
    with Network(f"ns{os.getpid() % 10000}", ["head", "node"]) as network, contextlib.ExitStack() as stack:
        host, port = network.address("head"), settings.node_address[1]
        space = network.namespace("node")
        node = stack.enter_context(
            node_process(port, key, tmp_path / "node", 0, num_stages=1, host=host, namespace=space)
        )
        with standing_in(network.namespace("head")):
            async with running(dataclasses.replace(settings, node_address=(host, port)), is_cold=True) as world:
                await trains_again(world, 1)
                network.cut("node")
                await world.until(lambda: lost_trainers(world), "the silence is noticed")
                await world.until(lambda: stage_of(world).state == "waiting", "nobody trains alone")
                await asyncio.to_thread(node.until, lambda: not node.trainers(), "trainers of the node have ended")
                network.heal("node")
                await trains_again(world, 2)
                assert await world.replay() == one_worker(world).anchor_sha256
    assert world.site.trainer.restarts.left == settings.restarts_max, "nobody has failed"
