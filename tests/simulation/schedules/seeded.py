"""One seeded schedule: how many peers, which links, which faults when; runs it and checks the invariants."""

import random
from dataclasses import dataclass, replace

from dilocoxd.machines.peers.tips import UNAVAILABLE_MAX
from tests.simulation.ledger import Broken
from tests.simulation.peer.arithmetic import REAL_CODECS
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of
from tests.simulation.schedules.byzantine import KINDS, Mischief
from tests.simulation.schedules.faults import heal, plan_false_refusals, plan_fault
from tests.simulation.swarm import QUIET_S, Swarm
from tests.simulation.world import World

FAULTS_S = (15.0, 25.0, 40.0)
SNAPSHOTS_PART = 0.4
"""Schedules in which payloads of old entries are gone and snapshots are offered."""
REAL_PART = 0.02
"""Schedules with the real codecs; with logs on real files; with 8 to 12 peers; with up to 50."""
FILES_PART = 0.05
CROWD_PART = 0.01
BIG_CROWD_PART = 0.001
COALITION_OF = (4, 5, 7, 7, 8, 10)
"""Peers of a schedule with a coalition, of whom 1, 1, 2, 2, 2 and 3 lie."""
CALM_S = 15.0
CALM_MAX_S = 25.0
"""Without faults there is a round within this time; one that comes sooner ends the wait."""

OFFERED_S = 26.0
"""So long after the first contribution there is a round, also if a liar spoils two attempts: it is in one whose grace
it used up (`grace_max_s`), sends nothing, and coordinates the next one before it has heard who blames it (2 x
`progress_timeout_s`)."""
FORGED_MAX = 3
"""So many times the calm time a liar that forges branches may take."""
DECISIONS_MAX = 3
"""So often operators choose: what they chose may be left again while some still take it."""
LATE_S = 15.0
"""So long after a liar answered at last, or a round that it had held up, the others have done their part."""


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
    is_passed_over: bool = False


@dataclass(frozen=True)
class Variant:
    """What is asked of a schedule beyond its seed.

    `is_gathered`: everybody sums for itself (X11). `final_depth`: of R28; where final entries keep peers apart in the
    end, an operator decides. `probation_rounds`: who comes after the first entry is on probation for so long (M11).
    `has_coalition`: of 4 to 10 peers just under a third lie, all in one way or each in its own.
    `tells_gone`: who crashes is found gone at once, and now and then somebody who is there (D11.4).
    `needs_liar`: a seed in whose schedule nobody lies is passed over (`Outcome.is_passed_over`)."""

    is_gathered: bool = False
    final_depth: int = 0
    probation_rounds: int = 0
    has_coalition: bool = False
    tells_gone: bool = False
    needs_liar: bool = False


PLAIN = Variant()


class NobodyLies(Exception):
    """A schedule was to have a liar and has none."""


def run_seed(seed: int, variant: Variant = PLAIN, *, keeps_transcript: bool = False) -> Outcome:
    """Run one schedule. `problem` is empty when every invariant held."""
    world = World(seed, keeps_transcript=keeps_transcript)
    swarm = Swarm(
        world,
        is_gathered=variant.is_gathered,
        probation_rounds=variant.probation_rounds,
        tells_gone=variant.tells_gone,
    )
    swarm.limits = replace(swarm.limits, final_depth=variant.final_depth)
    problem = ""
    is_passed_over = False
    try:
        _run(swarm, variant)
    except NobodyLies:
        is_passed_over = True
    except AssertionError as error:
        problem = f"{type(error).__name__}: {error} (at {world.now:.3f} s)"
        world.log(problem)
    finally:
        swarm.close()
    outcome = Outcome(
        seed,
        problem,
        max((len(n.disk.log) for n in swarm.nodes.values()), default=0),
        swarm.attempts_failed,
        swarm.recoveries,
        swarm.ledger.num_forks(),
        world.num_events,
        tuple(world.transcript),
        is_passed_over,
    )
    swarm.dismantle()
    return outcome


def _run(swarm: Swarm, variant: Variant) -> None:
    world, rng = swarm.world, swarm.world.rng
    _populate(swarm, rng, rng.choice(COALITION_OF) if variant.has_coalition else 0)
    _links(swarm, rng)
    faults_s = rng.choice(FAULTS_S) if len(swarm.nodes) < 16 else min(FAULTS_S)
    if variant.has_coalition:
        kinds = rng.choice([KINDS, (rng.choice(KINDS),)])
        for villain in rng.sample(list(swarm.nodes.values()), (len(swarm.nodes) - 1) // 3):
            _corrupt(swarm, villain, rng.choice(kinds))
    elif len(swarm.nodes) > 2 and rng.random() < 0.35:
        _corrupt(swarm, rng.choice(list(swarm.nodes.values())), rng.choice(KINDS))
    if variant.needs_liar and not swarm.has_liar:
        raise NobodyLies
    for index, node in enumerate(swarm.nodes.values()):
        world.at(0.0 if index < 2 else rng.choice([0.0, rng.uniform(0, faults_s / 2)]), node.start)
    for _ in range(rng.choice([0, 1, 2, 4, 8])):
        plan_fault(swarm, rng, rng.uniform(1.0, faults_s), faults_s)
    if swarm.tells_gone:
        plan_false_refusals(swarm, rng, faults_s)
    world.run(faults_s)
    heal(swarm)
    world.run(faults_s + rng.choice([1.0, 5.0, CALM_S]))
    before = swarm.rounds_finished
    _run_calmly(swarm, before)
    _check_progress(swarm, before)
    swarm.is_training = False
    world.run_until(swarm.is_settled, world.now + QUIET_S)
    limit = world.now + QUIET_S
    while swarm.has_liar and not swarm.is_settled() and world.now < min(limit, swarm.moved_at + LATE_S):
        world.run_until(swarm.is_settled, world.now + 1.0)
    for _ in range(DECISIONS_MAX if swarm.limits.final_depth else 0):
        if not _operators_decide(swarm):
            break
        world.run_until(swarm.is_settled, world.now + QUIET_S)
    swarm.check_quiet()


def _corrupt(swarm: Swarm, villain: Node, kind: str) -> None:
    swarm.may_fork = swarm.has_liar = True
    villain.mischief = Mischief(kind, keys_of(villain.name), swarm.world.rng)
    swarm.world.log(f"{villain.name} {kind}")


def _operators_decide(swarm: Swarm) -> bool:
    """R28: final entries may keep peers apart until all operators choose one branch. False: they need not."""
    live = [node for node in swarm.nodes.values() if node.is_up and not node.is_paused and node.mischief is None]
    if len({node.machine.chain.head for node in live}) < 2 or not any(node.kept_from for node in live):
        return False
    chosen = max(live, key=lambda node: node.machine.chain.weight)
    for node in live:
        if node is not chosen:
            node.adopt(chosen)
    return True


def _run_calmly(swarm: Swarm, before: int) -> None:
    """A round within the time that it has. Who trains may have come to the chain late in it, held up by a liar or new
    after a lost disk: then rounds wait for the first contribution, not for each other, and the time counts from there.
    A branch that its liar withholds is asked for a few times (R22). One sound, heavier branch of a liar after the other
    takes everybody along each time: the time counts from the last one, but not for ever.
    """
    world, limit = swarm.world, _calm_max(swarm)
    started, offered = world.now, list[float]()

    def is_over() -> bool:
        if not offered and any(n.is_up and n.mischief is None and n.offered is not None for n in swarm.nodes.values()):
            offered.append(world.now)
        return swarm.rounds_finished > before

    world.run_until(is_over, started + limit)
    if swarm.has_liar or swarm.has_lost_disk:
        world.run_until(lambda: is_over() or bool(offered), started + 2 * limit)
        world.run_until(is_over, max([started, *offered]) + OFFERED_S)
    if any(node.mischief is not None and node.mischief.kind == "withholds" for node in swarm.nodes.values()):
        world.run_until(is_over, world.now + UNAVAILABLE_MAX * swarm.limits.recovery_retry_s)
    while not is_over() and world.now < min(swarm.forged_at + OFFERED_S, started + FORGED_MAX * limit):
        world.run_until(is_over, world.now + 1.0)


def _populate(swarm: Swarm, rng: random.Random, count_wanted: int) -> None:
    swarm.sums_kind = ("toy", rng.choice([1, 1, 2]), rng.choice([1, 2, 3, 7]))
    if rng.random() < REAL_PART:
        swarm.sums_kind = ("real", rng.choice(REAL_CODECS), rng.choice([1, 2, 3]))
    swarm.has_files = rng.random() < FILES_PART
    count = rng.choice([1, 2, 3, 3, 4, 5, 6])
    phase_s = rng.uniform(2.0, 6.0)
    if rng.random() < CROWD_PART:
        count = rng.choice([8, 10, 12])
    elif rng.random() < BIG_CROWD_PART:
        count, phase_s = rng.choice([16, 24, 50]), 12.0
    count = count_wanted or count
    if rng.random() < 0.2:
        swarm.limits = replace(swarm.limits, has_majority_quorum=True)
    if rng.random() < SNAPSHOTS_PART:
        swarm.serves_last = rng.choice([2, 4, 8])
        swarm.recovery_limits = replace(swarm.recovery_limits, replay_max=rng.choice([1, 3, 16]))
    swarm.limits = replace(swarm.limits, ready_repeat_s=rng.choice([1.0, 2.0]) if count < 16 else 4.0)
    for index in range(count):
        slow = rng.choice([1.0, 1.0, 1.0, 1.3, 2.5])
        node = swarm.add(f"p{index}", phase_s * slow, is_training=index == 0 or rng.random() < 0.85)
        node.clock_zero = rng.choice([0.0, rng.uniform(0.0, 1e6)])
        node.clock_rate = rng.choice([1.0, 1.0, rng.uniform(0.9, 1.1)])


def _links(swarm: Swarm, rng: random.Random) -> None:
    loss = rng.choice([0.0, 0.0, 0.01, 0.05, 0.15])
    for a in swarm.nodes:
        for b in swarm.nodes:
            link = swarm.world.link(a, b)
            link.loss = loss
            link.duplication = rng.choice([0.0, 0.05])
            link.delay_max = rng.choice([0.02, 0.1, 0.5])
            link.bytes_per_s = rng.choice([200.0, 1000.0, 5000.0])


def _calm_max(swarm: Swarm) -> float:
    """In a big crowd a phase alone takes 12 to 30 s. In a smaller one each observer that owns a segment may wait for a
    liar that sends it nothing: it is in no group with it, so its blame keeps nobody out (R12)."""
    is_slow = len(swarm.nodes) >= 16 or (len(swarm.nodes) >= 8 and swarm.has_liar)
    return 2 * CALM_MAX_S if is_slow else CALM_MAX_S


def _check_progress(swarm: Swarm, before: int) -> None:
    if swarm.limits.has_majority_quorum and (swarm.has_liar or swarm.has_lost_disk):
        return  # half of the contributors may be gone for ever: then waiting is what the operator asked for
    honest = [n for n in swarm.nodes.values() if n.is_up and n.trains and n.mischief is None]
    if all(n.machine.chain.is_on_probation(n.name) for n in honest):
        return  # a liar trains alone, nobody must follow it; or who is there waits for a member (M11)
    after = swarm.rounds_finished
    if after < before + 1:
        states = ", ".join(f"{n.name}: {n.machine.status}" for n in swarm.nodes.values() if n.is_up)
        raise Broken(f"no round in {_calm_max(swarm):g} calm seconds or more ({before} -> {after}); {states}")
