"""Directed schedules for rules that no law R-a to R-e sees broken: who is waited for, and for how long (rules.py)."""

from dataclasses import replace

from dilocoxd.machines.round import inputs as e
from dilocoxd.machines.round.grouping import coordinator_order
from dilocoxd.wire.messages import Accept, Committed, Vote
from tests.simulation.peer.disk import RUN_ID
from tests.simulation.peer.node import Node
from tests.simulation.schedules.scenario_tools import _result, _swarm, _unaccepted, _until
from tests.simulation.swarm import default_limits

SOON_S = 0.2
STILL_S = 4.0
"""Shorter than anybody needs to take it for dead."""
HELD_S = 8.0
"""A grace that is seen in what a round takes."""


def who_was_silent_and_answered_is_waited_for_again() -> str:
    """Heartbeats of one come through, the rest is lost for a while; it answers; then the rest is lost again."""
    swarm, nodes = _swarm(3)
    *others, silent = nodes
    silent.is_training = False
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    for _ in range(2):
        swarm.is_dropped = lambda source, message: source == silent.name
        height = max(len(node.disk.log) for node in others) + 2
        _until(swarm, lambda limit=height: min(len(node.disk.log) for node in others) >= limit, 200.0)
        swarm.is_dropped = lambda source, message: False
        swarm.world.run(swarm.world.now + 3 * swarm.limits.ready_repeat_s)
    return _result(swarm)


def coordinator_that_stands_still_in_the_grace_hears_the_others_first() -> str:
    """A coordinator waits for others that are due, and stands still while the grace would have ended."""
    swarm, nodes = _swarm(3)
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    for _ in range(4):
        _until(swarm, lambda: any(_waits_in_the_grace(node) for node in nodes), 300.0)
        leader = next(node for node in nodes if _waits_in_the_grace(node))
        swarm.is_training = False  # nothing new comes meanwhile
        leader.pause()
        swarm.world.run(swarm.world.now + STILL_S)
        leader.resume()
        swarm.is_training = True
        swarm.world.run(swarm.world.now + 2 * STILL_S)
    return _result(swarm)


def slow_coordinator_waits_for_itself_once() -> str:
    """One of two has a phase that does not end; it coordinates, and knows after one grace that it is late (R6.6)."""
    limits = replace(default_limits(), grace_min_s=HELD_S, coordinator_patience_s=2 * HELD_S)
    swarm, (quick, slow) = _swarm(2, limits=limits)
    _until(swarm, lambda: min(node.machine.chain.height if node.is_up else 0 for node in (quick, slow)) > 1)
    slow.phase_s = 1000.0
    _until(swarm, lambda: slow.offered is not None)
    _until(swarm, lambda: slow.offered is None)
    held: list[float] = []
    for height in range(quick.machine.chain.height, quick.machine.chain.height + 10):
        _until(swarm, lambda: quick.offered is not None, 400.0)
        since = swarm.world.now
        _until(swarm, lambda limit=height: quick.machine.chain.height > limit, 400.0)
        held.append(swarm.world.now - since)
    num_held = sum(seconds >= HELD_S for seconds in held)  # once by each of them
    if num_held > 2:
        return f"{num_held} of {len(held)} rounds were held for a site that is late in all"
    return _result(swarm)


def _waits_in_the_grace(node: Node) -> bool:
    status, peers = node.machine.status, list(node.swarm.nodes)
    is_first = coordinator_order(RUN_ID, status.round, status.attempt, peers)[0] == node.name
    offered = [other.offered is not None for other in node.swarm.nodes.values()]
    is_together = len({other.machine.chain.head for other in node.swarm.nodes.values()}) == 1
    return is_first and is_together and status.state == "gathering" and node.offered is not None and not all(offered)


def nothing_is_committed_beside_another_entry_that_somebody_claims() -> str:
    """All votes are here, an acceptance is not; before that is waived, its peer claims another entry."""
    swarm, contributor, observer = _unaccepted()
    swarm.may_fork = True
    swarm.is_dropped = lambda source, message: isinstance(message, Vote | Accept)
    _until(swarm, lambda: contributor.machine.status.state == "voting")
    swarm.is_dropped = lambda source, message: source == observer.name or isinstance(message, Vote)
    swarm.world.run(swarm.world.now + swarm.limits.vote_timeout_s - 0.5 * swarm.limits.behind_grace_s)
    height = contributor.machine.chain.height
    contributor.feed(e.MessageReceived(observer.name, Committed(height, b"another entry".ljust(32))))
    swarm.world.run(swarm.world.now + 0.5 * swarm.limits.behind_grace_s + SOON_S)
    if contributor.machine.chain.height != height:
        return "committed beside another entry"
    swarm.is_dropped = lambda source, message: False
    return _result(swarm)


RULES = (
    slow_coordinator_waits_for_itself_once,
    nothing_is_committed_beside_another_entry_that_somebody_claims,
    who_was_silent_and_answered_is_waited_for_again,
    coordinator_that_stands_still_in_the_grace_hears_the_others_first,
)
