"""Donors that give an entry at a time: of a branch of its own making without end, or of the true chain, each time late
and before the others are heard of."""

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
from tests.simulation.schedules.scenarios_probation import LONG, _open_run
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


LIMIT_S = 120.0


def restarted_beside_a_slow_donor(lives: int, liar_is_first_by_s: float) -> tuple[Swarm, Node, float]:
    """(the swarm, the site, how long it took to where the others stood; LIMIT_S: never). The others are honest, there,
    and their links are sound. In life 3 what it heard before is old (R19.7; presence.py), in life 2 it is not."""
    swarm = Swarm(World(1))
    nodes = [swarm.add(f"p{index}", 3.0) for index in range(4)]
    for node in nodes:
        swarm.world.at(0.0, node.start)
    swarm.has_liar = swarm.may_fork = True
    site, liar = nodes[0], nodes[-1]
    liar.mischief = TrustMischief("slow_donor", keys_of(liar.name), swarm.world.rng)
    liar.mischief.page, liar.mischief.answers_left, liar.is_training = 1, 1e9, False
    while min(len(node.disk.log) for node in nodes) < 4:
        swarm.world.step()
    for _ in range(lives - 2):
        site.crash()
        site.start()
    site.crash()
    swarm.world.run(swarm.world.now + 8.0)
    top = len(nodes[1].disk.log)
    honest: set[PeerId] = {nodes[1].name, nodes[2].name}
    for name in honest if liar_is_first_by_s else ():
        swarm.world.link(name, site.name).is_cut = swarm.world.link(site.name, name).is_cut = True
    site.start()
    began = swarm.world.now
    site.guarded(lambda: site.presence.on_record(liar.name, liar.presence.record("training")))()
    swarm.world.run(began + liar_is_first_by_s)
    for name in honest:
        swarm.world.link(name, site.name).is_cut = swarm.world.link(site.name, name).is_cut = False
    while len(site.disk.log) < top and swarm.world.now < began + LIMIT_S:
        swarm.world.step()
    return swarm, site, swarm.world.now - began


@pytest.mark.parametrize("first_by_s", [0.0, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("lives", [2, 3], ids=["with the grace", "R19.7"])
def test_who_is_heard_first_keeps_nobody_from_the_others(lives: int, first_by_s: float) -> None:
    _, site, took_s = restarted_beside_a_slow_donor(lives, first_by_s)
    assert site.disk.incarnation == lives
    assert took_s < LIMIT_S / 2


# --- found by an adversary of R22.6 and R22.7

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
