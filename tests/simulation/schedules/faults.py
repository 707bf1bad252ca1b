"""What goes wrong in a schedule, and how all of it ends: crashes, pauses, cuts, slow links, disks, leaving."""

import functools
import random

from dilocoxd.machines.round.inputs import LeaveRequested
from tests.simulation.peer.disk import CRASHES
from tests.simulation.peer.node import Node
from tests.simulation.swarm import Swarm

SPLITTING = ("partition", "one_way", "cut", "wipe", "lose_log")
KINDS = (
    "crash", "crash", "crash", "crash_in_write", "pause", "partition", "one_way", "cut", "slow", "wipe", "lose_log",
    "full", "leave",
)  # fmt: skip


def plan_fault(swarm: Swarm, rng: random.Random, at: float, ends: float) -> None:
    """Something goes wrong at this time, and may be mended later; at `ends` everything is."""
    node = rng.choice(list(swarm.nodes.values()))
    kind = rng.choice(KINDS)
    lasts = rng.choice([0.2, 2.0, 8.0, 20.0])
    world = swarm.world
    swarm.may_fork = swarm.may_fork or kind in SPLITTING
    swarm.has_lost_disk = swarm.has_lost_disk or kind in ("wipe", "lose_log")
    if kind == "wipe":
        world.at(at, lambda: _replace(swarm, node, lasts))
    elif kind == "crash":
        world.at(at, lambda: _crash(node, rng))
        world.at(at + lasts, lambda: _restart(node))
    elif kind == "crash_in_write":
        world.at(at, lambda: setattr(node, "crash_in_append", rng.choice(CRASHES)))
        world.at(at + lasts, lambda: _restart(node))
    elif kind == "lose_log":
        world.at(at, lambda: _lose_log(swarm, node))
        world.at(at + lasts, lambda: _restart(node))
    elif kind == "full":
        world.at(at, lambda: setattr(node.disk, "is_full", True))
        world.at(at + lasts, lambda: _make_space(node))
    elif kind == "slow":
        world.at(at, lambda: _slow_down(swarm, node, rng.choice([10.0, 30.0])))
    elif kind == "pause":
        world.at(at, node.pause)
        world.at(at + lasts, node.resume)
    elif kind == "leave":
        at = min(at, max(1.0, ends - swarm.limits.leave_timeout_s - 1.0))
        world.at(at, lambda: _ask_to_leave(node))
        world.at(at + lasts + 15.0, lambda: _restart(node))
    else:
        cut = _choose_cut(swarm, rng, kind)
        world.at(at, lambda: _set_cut(swarm, cut, is_cut=True))
        world.at(at + lasts, lambda: _set_cut(swarm, cut, is_cut=False))


def plan_false_refusals(swarm: Swarm, rng: random.Random, ends: float) -> None:
    """One that is alive is found gone by others, now and then: something on the way refuses its connections (D11.4).

    Always the same one, and never by itself: two that each take the other for gone are two halves of a split swarm.
    """
    victim = rng.choice(list(swarm.nodes.values()))

    def refuse() -> None:
        swarm.world.log(f"connections to {victim.name} are refused on the way")
        for node in swarm.nodes.values():
            if node is not victim and node.is_up and rng.random() < 0.7:
                node.guarded(functools.partial(node.presence.believe_gone, victim.name))()

    for _ in range(rng.choice([0, 0, 1, 3])):
        swarm.world.at(rng.uniform(1.0, ends), refuse)


def _choose_cut(swarm: Swarm, rng: random.Random, kind: str) -> list[tuple[str, str]]:
    names = list(swarm.nodes)
    if kind == "partition":
        side = {name for name in names if rng.random() < 0.5}
        return [(a, b) for a in names for b in names if (a in side) != (b in side)]
    a, b = rng.choice(names), rng.choice(names)
    return [(a, b)] if kind == "one_way" else [(a, b), (b, a)]


def _set_cut(swarm: Swarm, pairs: list[tuple[str, str]], *, is_cut: bool) -> None:
    swarm.world.log(f"{'cut' if is_cut else 'healed'}: {pairs}")
    for a, b in pairs:
        swarm.world.link(a, b).is_cut = is_cut


def _crash(node: Node, rng: random.Random) -> None:
    if rng.random() < 0.7 and node.is_up:
        node.crash_after = rng.randint(1, 12)
    else:
        node.crash()


def _replace(swarm: Swarm, node: Node, lasts: float) -> None:
    """The run directory is gone, identity included: the site comes back as another peer."""
    node.crash(wipes_disk=True)
    node.is_lost = True
    successor = swarm.add(f"{node.name}x{len(swarm.nodes)}", node.phase_s, is_training=node.is_training)
    swarm.world.after(lasts, successor.start)


def _lose_log(swarm: Swarm, node: Node) -> None:
    node.crash()
    if not node.is_lost:
        node.disk.lose_log()
        swarm.ledger.wiped(node.name)


def _make_space(node: Node) -> None:
    node.disk.is_full = False
    _restart(node)


def _slow_down(swarm: Swarm, node: Node, bytes_per_s: float) -> None:
    swarm.world.log(f"{node.name} has slow links")
    for peer in swarm.nodes:
        swarm.world.link(node.name, peer).bytes_per_s = bytes_per_s
        swarm.world.link(peer, node.name).bytes_per_s = bytes_per_s


def _restart(node: Node) -> None:
    node.crash_after = None
    node.crash_in_append = ""
    if not node.is_up and not node.is_lost:
        node.start()


def _ask_to_leave(node: Node) -> None:
    if node.is_up and not node.is_paused:
        node.feed(LeaveRequested())


def heal(swarm: Swarm) -> None:
    """All faults end; whoever stood still while it was about to leave does so, and comes back."""
    swarm.world.log("all faults end")
    for link in swarm.world.links.values():
        link.is_cut = False
        link.loss = 0.0
        link.bytes_per_s = max(link.bytes_per_s, 200.0)
    for node in swarm.nodes.values():
        node.crash_after = None
        node.crash_in_append = ""
        node.disk.is_full = False
        node.resume()
        if not node.is_up and not node.is_lost:
            node.start()
    leaving = [node for node in swarm.nodes.values() if node.is_up and node.watch.leave_at is not None]
    world = swarm.world
    world.run_until(lambda: not any(node.is_up for node in leaving), world.now + swarm.limits.leave_timeout_s)
    for node in leaving:
        _restart(node)
