"""One of four says that it stands far ahead, and gives a branch of its own making an entry at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dilocoxd.ids import PeerId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.round.inputs import RoundMessage
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.messages import Committed, Ready
from tests.simulation.liars import TrustMischief
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of
from tests.simulation.swarm import Swarm
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.peer.disk import Stored
    from tests.simulation.peer.recovering import Recovery

LENGTH = 1000
"""Entries, of no use: votes are looked at when all are there."""


class Endless(TrustMischief):
    """Slow, with a branch of its own from entry 0 on."""

    page = 1
    late_s = 0.0
    """After which each answer comes; 0: just before its time is over."""

    def late(self, recovery: Recovery, question: r.Ask) -> float:
        return self.late_s or super().late(recovery, question)

    def log(self, node: Node) -> list[Stored]:
        return self.forged or node.disk.log

    def chain(self, own: ChainView) -> ChainView:
        if not self.forged:
            return own
        tip = self.forged[-1].signed.entry
        return replace(own, height=RoundIndex(tip.round + 1), head=entry_hash(tip))

    def messages(self, node: Node, target: PeerId, message: RoundMessage) -> list[RoundMessage]:
        if not self.forged or not isinstance(message, Ready):
            return [message]
        tip = self.forged[-1].signed.entry
        return [message, Committed(tip.round, entry_hash(tip))]


@pytest.mark.parametrize("late_s", [0.5, 0.0], ids=["after half a second", "at the last moment"])
def test_who_gives_an_endless_branch_slowly_stops_nobody(late_s: float) -> None:
    swarm = Swarm(World(1))
    nodes = [swarm.add(f"p{index}", 3.0) for index in range(4)]
    for node in nodes:
        swarm.world.at(0.0, node.start)
    swarm.has_liar = swarm.may_fork = True
    liar = nodes[-1]
    mischief = liar.mischief = Endless("slow_donor", keys_of(liar.name), swarm.world.rng)
    mischief.late_s, mischief.answers_left, mischief.gives_wrong_bytes = late_s, 1e9, False
    while min(len(node.disk.log) for node in nodes) < 4:
        swarm.world.step()
    mischief.fork_at_genesis(liar, LENGTH, 0, is_even=True)
    liar.is_training = False
    swarm.world.run(swarm.world.now + 30.0)
    before, began = [len(node.disk.log) for node in nodes[:-1]], swarm.world.now
    swarm.world.run(began + 600.0)
    grown = [len(node.disk.log) - height for node, height in zip(nodes, before, strict=False)]
    states = [node.recovery.machine.status.waiting_for for node in nodes[:-1] if node.recovery is not None]
    assert min(grown) > 20, f"{grown} entries in 600 s; {states}"
