"""Branches without end, an entry at a time, where others are heard of late, are first somewhere, or cost nothing."""

from __future__ import annotations

import pytest

from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of
from tests.simulation.schedules.scenarios_probation import LONG, _open_run
from tests.simulation.swarm import Swarm
from tests.simulation.test_slow_branches import LENGTH, Endless
from tests.simulation.world import World

QUICK_S, LATE_S = 0.5, 0.0
"""One entry an answer, after half a second, which is not late (L16); or just before its time is over."""
WATCHED_S = 400.0


def lie(swarm: Swarm, liar: Node, late_s: float) -> None:
    """From now on it claims a great height, and shows a branch of its own that nobody sees the end of in time."""
    swarm.may_fork = swarm.has_liar = True
    mischief = liar.mischief = Endless("slow_donor", keys_of(liar.name), swarm.world.rng)
    mischief.late_s, mischief.answers_left, mischief.gives_wrong_bytes = late_s, 1e9, False
    mischief.page = 1
    mischief.fork_at_genesis(liar, LENGTH, 0, is_even=True)
    liar.is_training = False


def four(seed: int) -> tuple[Swarm, list[Node]]:
    swarm = Swarm(World(seed))
    nodes = [swarm.add(f"p{index}", 3.0) for index in range(4)]
    for node in nodes:
        swarm.world.at(0.0, node.start)
    return swarm, nodes


def grown(swarm: Swarm, nodes: list[Node]) -> list[int]:
    """Entries by which each log grows in the second half of WATCHED_S."""
    swarm.world.run(swarm.world.now + WATCHED_S / 2)
    before = [len(node.disk.log) for node in nodes]
    swarm.world.run(swarm.world.now + WATCHED_S / 2)
    return [len(node.disk.log) - height for node, height in zip(nodes, before, strict=True)]


@pytest.mark.parametrize("late_s", [QUICK_S, LATE_S])
def test_run_that_begins_beside_an_endless_branch_begins(late_s: float) -> None:
    swarm, nodes = four(1)
    swarm.world.run(0.5)
    lie(swarm, nodes[-1], late_s)
    assert min(grown(swarm, nodes[:-1])) > 5


@pytest.mark.parametrize("seed", [1, 3])
def test_who_arrives_first_at_a_new_height_is_not_held_there(seed: int) -> None:
    swarm, nodes = four(seed)
    while min(len(node.disk.log) for node in nodes) < 4:
        swarm.world.step()
    lie(swarm, nodes[-1], QUICK_S)
    assert min(grown(swarm, nodes[:-1])) > 5


def test_newcomer_is_not_held_by_whom_it_hears_of_first() -> None:
    swarm, nodes = four(1)
    while min(len(node.disk.log) for node in nodes) < 4:
        swarm.world.step()
    lie(swarm, nodes[-1], QUICK_S)
    site = swarm.add("n", 3.0)
    cuts = [swarm.world.link(*ends) for one in nodes[:-1] for ends in ((one.name, "n"), ("n", one.name))]
    for link in cuts:
        link.is_cut = True
    site.start()
    swarm.world.run(swarm.world.now + 2.0)
    for link in cuts:
        link.is_cut = False
    swarm.world.run(swarm.world.now + WATCHED_S)
    assert len(site.disk.log) > 0


@pytest.mark.parametrize("late_s", [QUICK_S, LATE_S])
def test_fresh_ids_that_claim_most_stop_nobody(late_s: float) -> None:
    swarm, founders, fresh = _open_run(2, LONG)
    for node in fresh:
        lie(swarm, node, late_s)
    assert min(grown(swarm, founders)) > 5
