"""One seeded schedule: how many peers, which links, which faults when; runs it and checks the invariants."""

import random
from dataclasses import dataclass, replace

from dilocoxd.rounds.limits import PayloadShape
from tests.simulation.byzantine import KINDS, Mischief
from tests.simulation.ledger import Broken
from tests.simulation.node import Node, keys_of
from tests.simulation.swarm import Swarm
from tests.simulation.world import World

FAULTS_S = 40.0
CALM_S = 15.0
CALM_MAX_S = 25.0
"""Without faults there is a round within this time; one that comes sooner ends the wait."""
QUIET_S = 45.0
"""Without faults and new contributions all live peers agree within this time; sooner if nobody owes anything."""
SPLITTING = ("partition", "one_way", "cut", "wipe")


@dataclass(frozen=True)
class Outcome:
    """What a schedule did."""

    seed: int
    problem: str
    rounds: int
    attempts_failed: int
    recoveries: int
    forks: int
    num_events: int
    transcript: tuple[str, ...]


def run_seed(seed: int, *, keeps_transcript: bool = False) -> Outcome:
    """Run one schedule. `problem` is empty when every invariant held."""
    world = World(seed, keeps_transcript=keeps_transcript)
    swarm = Swarm(world)
    problem = ""
    try:
        _run(swarm)
    except AssertionError as error:
        problem = f"{type(error).__name__}: {error} (at {world.now:.3f} s)"
        world.log(problem)
    return Outcome(
        seed,
        problem,
        max((len(n.disk.log) for n in swarm.nodes.values()), default=0),
        swarm.attempts_failed,
        swarm.recoveries,
        swarm.ledger.num_forks(),
        world.num_events,
        tuple(world.transcript),
    )


def _run(swarm: Swarm) -> None:
    world, rng = swarm.world, swarm.world.rng
    segments = rng.choice([1, 2, 3, 7])
    swarm.shape = PayloadShape(rng.choice([1, 1, 2]), (100,) * segments)
    count = rng.choice([1, 2, 3, 3, 4, 5, 6])
    phase_s = rng.uniform(2.0, 6.0)
    for index in range(count):
        slow = rng.choice([1.0, 1.0, 1.0, 1.3, 2.5])
        swarm.add(f"p{index}", phase_s * slow, is_training=index == 0 or rng.random() < 0.85)
    if rng.random() < 0.2:
        swarm.limits = replace(swarm.limits, has_majority_quorum=True)
    _links(swarm, rng)
    if count > 2 and rng.random() < 0.35:
        swarm.may_fork = swarm.has_liar = True
        villain = rng.choice(list(swarm.nodes.values()))
        villain.mischief = Mischief(rng.choice(KINDS), keys_of(villain.name), rng)
        world.log(f"{villain.name} {villain.mischief.kind}")
    for index, node in enumerate(swarm.nodes.values()):
        world.at(0.0 if index < 2 else rng.choice([0.0, rng.uniform(0, FAULTS_S / 2)]), node.start)
    for _ in range(rng.choice([0, 1, 2, 4, 8])):
        _plan_fault(swarm, rng, rng.uniform(1.0, FAULTS_S))
    world.run(FAULTS_S)
    _heal(swarm)
    world.run(FAULTS_S + rng.choice([1.0, 5.0, CALM_S]))
    before = swarm.rounds_finished
    world.run_until(lambda: swarm.rounds_finished > before, world.now + CALM_MAX_S)
    _check_progress(swarm, before)
    swarm.is_training = False
    world.run_until(swarm.is_settled, world.now + QUIET_S)
    swarm.check_quiet()


def _links(swarm: Swarm, rng: random.Random) -> None:
    loss = rng.choice([0.0, 0.0, 0.01, 0.05, 0.15])
    for a in swarm.nodes:
        for b in swarm.nodes:
            link = swarm.world.link(a, b)
            link.loss = loss
            link.duplication = rng.choice([0.0, 0.05])
            link.delay_max = rng.choice([0.02, 0.1, 0.5])
            link.bytes_per_s = rng.choice([200.0, 1000.0, 5000.0])


def _plan_fault(swarm: Swarm, rng: random.Random, at: float) -> None:
    node = rng.choice(list(swarm.nodes.values()))
    kind = rng.choice(["crash", "crash", "crash", "pause", "partition", "one_way", "wipe", "leave", "cut"])
    lasts = rng.choice([0.2, 2.0, 8.0, 20.0])
    world = swarm.world
    swarm.may_fork = swarm.may_fork or kind in SPLITTING
    swarm.has_lost_disk = swarm.has_lost_disk or kind == "wipe"
    if kind == "wipe":
        world.at(at, lambda: _replace(swarm, node, lasts))
    elif kind == "crash":
        world.at(at, lambda: _crash(node, rng))
        world.at(at + lasts, lambda: _restart(node))
    elif kind == "pause":
        world.at(at, node.pause)
        world.at(at + lasts, node.resume)
    elif kind == "leave":
        at = min(at, FAULTS_S - swarm.limits.leave_timeout_s - 1.0)
        world.at(at, lambda: _ask_to_leave(node))
        world.at(at + lasts + 15.0, lambda: _restart(node))
    else:
        cut = _choose_cut(swarm, rng, kind)
        world.at(at, lambda: _set_cut(swarm, cut, is_cut=True))
        world.at(at + lasts, lambda: _set_cut(swarm, cut, is_cut=False))


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
    node.is_gone = True
    successor = swarm.add(f"{node.name}x{len(swarm.nodes)}", node.phase_s, is_training=node.is_training)
    swarm.world.after(lasts, successor.start)


def _restart(node: Node) -> None:
    node.crash_after = None
    if not node.is_up and not node.is_gone:
        node.start()


def _ask_to_leave(node: Node) -> None:
    from dilocoxd.rounds.events import LeaveRequested

    if node.is_up and not node.is_paused:
        node.feed(LeaveRequested())


def _heal(swarm: Swarm) -> None:
    swarm.world.log("all faults end")
    for link in swarm.world.links.values():
        link.is_cut = False
        link.loss = 0.0
    for node in swarm.nodes.values():
        node.crash_after = None
        node.resume()
        if not node.is_up and not node.is_gone:
            node.start()


def _check_progress(swarm: Swarm, before: int) -> None:
    if swarm.limits.has_majority_quorum and (swarm.has_liar or swarm.has_lost_disk):
        return  # half of the contributors may be gone for ever: then waiting is what the operator asked for
    after = swarm.rounds_finished
    if after < before + 1:
        states = ", ".join(f"{n.name}: {n.machine.status}" for n in swarm.nodes.values() if n.is_up)
        raise Broken(f"no round in {CALM_MAX_S:g} calm seconds ({before} -> {after}); {states}")
