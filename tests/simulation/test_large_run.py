"""A round of the paper's largest run (107B, low rank 2048, H = 125), with made-up payloads for its segments: every
decision machine takes it, and the daemon's loop has time for it."""

from __future__ import annotations

import time
from typing import Any

from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.placement import place
from tests.harness.large_runs import run_of
from tests.simulation.peer.node import Node
from tests.simulation.swarm import Swarm
from tests.simulation.world import World

PARTS = 18
"""Outer parts of a site: a node of the paper's twenty each, less two that train only."""
SEGMENTS_OF_PART_MIN = 100
LOOP_S_MAX = 2.0
"""CPU of one site's machine over one round: 0.5 to 0.8 on a busy core; squared in the segments it would be minutes."""
ROUND_S_MAX = 3600.0


class Timed:
    """A machine, and the CPU seconds that it has taken."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def handle(self, *arguments: Any, **named: Any) -> Any:
        return self._taken(self._machine.handle, *arguments, **named)

    def next_deadline(self) -> Any:
        return self._taken(self._machine.next_deadline)

    def _taken(self, work: Any, *arguments: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return work(*arguments, **named)
        finally:
            self.seconds += time.process_time() - began


class TimedNode(Node):
    """Its machine is timed from its start on."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, Timed(value) if name == "machine" else value)


def test_one_round_of_107b_costs_the_loop_little() -> None:
    plan = make_plan(run_of("107B", 2048))
    assert min(len(part) for part in place(plan.segments, PARTS)) >= SEGMENTS_OF_PART_MIN
    swarm = Swarm(World(5), ("toy", plan.num_passes, plan.num_segments))
    nodes = [TimedNode(swarm, f"p{index}", 4.0) for index in range(2)]
    for node in nodes:
        swarm.nodes[node.name] = node
        swarm.world.at(0.0, node.start)
    while not all(node.is_up and node.machine.chain.height for node in nodes):
        assert swarm.world.step() and swarm.world.now < ROUND_S_MAX
    taken = [node.machine.seconds for node in nodes]
    entry = nodes[0].disk.log[0].signed.entry
    assert len(entry.contributions) == 2 and len(entry.result_hashes) == plan.num_passes * plan.num_segments
    assert not swarm.attempts_failed
    assert max(taken) < LOOP_S_MAX, taken
