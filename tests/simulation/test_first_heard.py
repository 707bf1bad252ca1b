"""A site restarts, and of all it hears first of one that gives its chain an entry at a time, each time late."""

import pytest

from dilocoxd.ids import PeerId
from tests.simulation.liars import TrustMischief
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of
from tests.simulation.swarm import Swarm
from tests.simulation.world import World

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
