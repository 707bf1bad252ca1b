"""Directed schedules for moments that random ones rarely hit. Each returns the broken invariant, or an empty text."""

from collections.abc import Callable
from dataclasses import replace

from dilocoxd.wire.messages import Committed, Vote
from tests.simulation.ledger import Broken
from tests.simulation.node import Node
from tests.simulation.swarm import Swarm
from tests.simulation.world import World


def _swarm(count: int) -> tuple[Swarm, list[Node]]:
    swarm = Swarm(World(7))
    nodes = [swarm.add(f"p{index}", 4.0) for index in range(count)]
    for node in nodes:
        swarm.world.at(0.0, node.start)
    return swarm, nodes


def _until(swarm: Swarm, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    while not condition():
        assert swarm.world.step() and swarm.world.now < limit_s, "the scenario's moment never came"


def _has_voted(node: Node) -> bool:
    lock = node.machine._core.lock
    return node.machine.status.state == "voting" and lock is not None and len(lock.voters) == 3


def _has_all(node: Node) -> bool:
    return bool(node.disk.log) and len(node.disk.log[-1].signed.votes) == 3


def voter_restarts_after_a_lone_commit() -> str:
    """One peer commits alone and dies, a second restarts after its vote: it and the third must commit the same."""
    swarm, nodes = _swarm(3)
    first, others = nodes[0], nodes[1:]
    _until(swarm, lambda: first.is_up and first.machine.chain.height > 0)
    silent = {first.name}
    swarm.is_dropped = lambda source, message: source in silent and isinstance(message, Vote | Committed)
    height = first.machine.chain.height
    _until(swarm, lambda: len(first.disk.log) > height and _has_all(first) and all(_has_voted(node) for node in others))
    first.crash()
    others[0].crash()
    swarm.world.after(0.5, others[0].start)
    silent.clear()
    swarm.world.after(25.0, first.start)
    return _result(swarm)


def split_and_heal() -> str:
    """2 + 2 for several rounds: one chain soon after contact, the losers' work back in their feedback."""
    swarm, nodes = _swarm(4)
    swarm.may_fork = True
    swarm.world.run(15.0)
    names = [node.name for node in nodes]
    pairs = [(a, b) for a in names for b in names if (a in names[:2]) != (b in names[:2])]
    for a, b in pairs:
        swarm.world.link(a, b).is_cut = True
    swarm.world.run(55.0)
    if len({node.machine.chain.head for node in nodes}) < 2:
        return "the halves did not go on by themselves"
    for a, b in pairs:
        swarm.world.link(a, b).is_cut = False
    return _result(swarm)


def majority_of_three_and_one() -> str:
    """`quorum = majority`, 3 + 1: the one waits with a reason and never forks."""
    swarm, nodes = _swarm(4)
    swarm.limits = replace(swarm.limits, has_majority_quorum=True)
    swarm.world.run(20.0)
    lonely = nodes[3]
    for node in nodes[:3]:
        swarm.world.link(node.name, lonely.name).is_cut = True
        swarm.world.link(lonely.name, node.name).is_cut = True
    swarm.world.run(60.0)
    if "majority" not in lonely.machine.status.waiting_for:
        return f"the one waits for: {lonely.machine.status.waiting_for}"
    for node in nodes[:3]:
        swarm.world.link(node.name, lonely.name).is_cut = False
        swarm.world.link(lonely.name, node.name).is_cut = False
    return _result(swarm) or ("a majority forked" if swarm.ledger.num_forks() else "")


def _result(swarm: Swarm) -> str:
    try:
        swarm.world.run(swarm.world.now + 60.0)
        swarm.is_training = False
        swarm.world.run(swarm.world.now + 40.0)
        swarm.check_quiet()
    except (Broken, AssertionError) as error:
        return str(error)
    return ""


SCENARIOS = (voter_restarts_after_a_lone_commit, split_and_heal, majority_of_three_and_one)
