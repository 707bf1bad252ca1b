"""Directed schedules of peers that are found gone, rightly or not (D11.4), or cut off (D11.5), in an exchange."""

from dilocoxd.machines.membership.machine import SUSPECT_S
from tests.simulation.peer.node import Node
from tests.simulation.peer.presence import CUT_S, HEARTBEAT_S, TICK_S
from tests.simulation.schedules.scenario_tools import _cut, _result, _swarm, _until
from tests.simulation.schedules.scenarios_exchange import _exchanges_with
from tests.simulation.swarm import Swarm

SOON_S = 1.5
"""From a death to the next entry: the look at the dead one's host, and an exchange as it is simulated."""


def _in_an_exchange() -> tuple[Swarm, Node, list[Node]]:
    """(.., one of three who are exchanging, the others), with data ports."""
    swarm, nodes = _swarm(3, tells_gone=True)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    _until(swarm, lambda: all(_exchanges_with(node, 3) for node in nodes))
    return swarm, nodes[0], nodes[1:]


def who_dies_in_an_exchange_is_gone_at_once() -> str:
    """Its host refuses connections: nobody asks or waits for it, and the others have the next entry at once."""
    swarm, victim, others = _in_an_exchange()
    height, died_at = len(others[0].disk.log), swarm.world.now
    victim.crash()
    _until(swarm, lambda: all(len(node.disk.log) > height for node in others))
    if swarm.world.now - died_at > SOON_S:
        return f"the next entry came {swarm.world.now - died_at:.2f} s after its death"
    victim.start()
    return _result(swarm)


def who_is_refused_on_the_way_is_back_with_its_next_word() -> str:
    """It lives, and both others find it gone: they go on without it, and it misses an entry, no more."""
    swarm, victim, others = _in_an_exchange()
    for node in others:
        node.presence.believe_gone(victim.name)
    log = others[0].disk.log
    height = len(log)
    _until(swarm, lambda: all(len(node.disk.log) > height + 2 for node in swarm.nodes.values()), 200.0)
    with_it = [any(c.peer == victim.name for c in stored.signed.entry.contributions) for stored in log[height:]]
    if with_it[0] or not any(with_it[1:3]):
        return f"of the entries since then, {with_it} are with it"
    return _result(swarm)


def who_is_cut_off_in_an_exchange_is_found_within_two_looks() -> str:
    """Its host acknowledges nothing, the others' do: they go on, and it, which hears nobody, does not go on alone."""
    swarm, victim, others = _in_an_exchange()
    swarm.may_fork = True  # one that is cut off for long goes on alone in the end
    height, cut_at = len(others[0].disk.log), swarm.world.now
    _cut(swarm, [victim], others, is_cut=True)
    _until(swarm, lambda: all(len(node.disk.log) > height for node in others))
    if swarm.world.now - cut_at > CUT_S + 2 * TICK_S + SOON_S:
        return f"the next entry came {swarm.world.now - cut_at:.2f} s after the cut"
    swarm.world.run(cut_at + SUSPECT_S)
    if len(victim.disk.log) > height:
        return "it went on alone at once"
    _cut(swarm, [victim], others, is_cut=False)
    return _result(swarm)


def halves_that_lose_each_other_for_a_moment_make_no_fork() -> str:
    """Two and two, cut for longer than a host needs to be found silent, and shorter than anybody is waited for."""
    swarm, nodes = _swarm(4, tells_gone=True)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    _until(swarm, lambda: all(_exchanges_with(node, 4) for node in nodes))
    _cut(swarm, nodes[:2], nodes[2:], is_cut=True)
    swarm.world.run(swarm.world.now + SUSPECT_S - HEARTBEAT_S / 2)
    _cut(swarm, nodes[:2], nodes[2:], is_cut=False)
    return _result(swarm)


GONE = (
    who_dies_in_an_exchange_is_gone_at_once,
    who_is_refused_on_the_way_is_back_with_its_next_word,
    who_is_cut_off_in_an_exchange_is_found_within_two_looks,
    halves_that_lose_each_other_for_a_moment_make_no_fork,
)
