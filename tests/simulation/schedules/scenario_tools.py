"""What directed schedules begin and end with: a swarm without faults, waiting for a moment, cuts, the final checks."""

from collections.abc import Callable
from typing import Any

from dilocoxd.ids import Digest
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.messages import Accept
from tests.simulation.ledger import Broken
from tests.simulation.peer.node import Node
from tests.simulation.swarm import Swarm
from tests.simulation.world import World


def _swarm(count: int, seed: int = 7, **options: Any) -> tuple[Swarm, list[Node]]:
    """`options` of the swarm."""
    swarm = Swarm(World(seed), **options)
    nodes = [swarm.add(f"p{index}", 4.0) for index in range(count)]
    for node in nodes:
        swarm.world.at(0.0, node.start)
    return swarm, nodes


def _until(swarm: Swarm, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    while not condition():
        assert swarm.world.step() and swarm.world.now < limit_s, "the scenario's moment never came"


def _unaccepted() -> tuple[Swarm, Node, Node]:
    """A contributor that gathers, and an observer whose `Accept` is lost from now on."""
    swarm, nodes = _swarm(2)
    contributor, observer = nodes
    observer.is_training = False
    _until(swarm, lambda: contributor.is_up and contributor.machine.chain.height > 1)
    swarm.is_dropped = lambda source, message: source == observer.name and isinstance(message, Accept)
    _until(swarm, lambda: contributor.machine.status.state == "gathering")
    return swarm, contributor, observer


def _cut(swarm: Swarm, left: list[Node], right: list[Node], *, is_cut: bool) -> None:
    for a in left:
        for b in right:
            swarm.world.link(a.name, b.name).is_cut = is_cut
            swarm.world.link(b.name, a.name).is_cut = is_cut


def _checked(swarm: Swarm) -> str:
    """What is wrong now."""
    try:
        swarm.check_quiet()
    except (Broken, AssertionError) as error:
        return str(error)
    return ""


def _result(swarm: Swarm) -> str:
    try:
        swarm.world.run(swarm.world.now + 60.0)
        swarm.is_training = False
        swarm.world.run(swarm.world.now + 40.0)
    except (Broken, AssertionError) as error:
        return str(error)
    return _checked(swarm)


def _holds(node: Node, digests: list[Digest]) -> bool:
    return any(entry_hash(stored.signed.entry) in digests for stored in node.disk.log)


def _undone(swarm: Swarm, nodes: list[Node], digests: list[Digest], what: str, rounds: int) -> str:
    """What is wrong once there was time to take these entries back, and to go on for so many rounds."""
    height = max(len(node.disk.log) for node in nodes)
    swarm.world.run(swarm.world.now + 60.0)
    if kept := [node.name for node in nodes if node.is_up and _holds(node, digests)]:
        return f"{kept} hold {what}"
    if min(len(node.disk.log) for node in nodes if node.is_up) < height + rounds:
        return f"heights {[len(node.disk.log) for node in nodes]} 60 s after height {height}"
    return _result(swarm)
