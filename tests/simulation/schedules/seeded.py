"""One seeded schedule: how many peers, which links, which faults when; runs it and checks the invariants."""

import functools
import random
from dataclasses import dataclass, replace

from dilocoxd.machines.peers.tips import UNAVAILABLE_MAX
from tests.simulation.ledger import Broken
from tests.simulation.liars import GHOSTS, TRUST_KINDS, TrustMischief, waits_for_its_operator
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
GHOSTS_PART = 0.5
"""Schedules with ghosts in which they are most of all."""
HAUNTED_MAX_S = 150.0
"""The same beside ghosts: R4 has each that is a member coordinate in its turn, drawn anew for each attempt, and 3 s are
over before the next one. With two of three of them ghosts: 17 such turns in a row in one of 1,000 rounds. And beside a
slow donor that alone has an entry: the entry, the end behind it and the payload take 26 s, and five times that (R22) if
one of them never comes."""
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
    `needs_liar`: a seed in whose schedule nobody lies is passed over (`Outcome.is_passed_over`).
    `abuses_trust`: liars are of the kinds of tests/simulation/liars.py, one of them at least in each schedule, or more
    ghosts than others; with `has_coalition` beside the other kinds.
    `only_kind`: of those kinds only this one; for a look at one of them."""

    is_gathered: bool = False
    final_depth: int = 0
    probation_rounds: int = 0
    has_coalition: bool = False
    tells_gone: bool = False
    needs_liar: bool = False
    abuses_trust: bool = False
    only_kind: str = ""

    @property
    def kinds(self) -> tuple[str, ...]:
        """How somebody may lie in it."""
        if not self.abuses_trust:
            return KINDS
        if self.only_kind:
            return (self.only_kind,)
        return (*TRUST_KINDS, *KINDS) if self.has_coalition else TRUST_KINDS


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
    num_ghosts = _plan_ghosts(swarm, rng, variant) if variant.abuses_trust else 0
    _populate(swarm, rng, _count_wanted(rng, variant, num_ghosts))
    _links(swarm, rng)
    faults_s = rng.choice(FAULTS_S) if len(swarm.nodes) < 16 else min(FAULTS_S)
    if num_ghosts:
        _haunt(swarm, rng, variant, num_ghosts)
    elif variant.has_coalition:
        kinds = rng.choice([variant.kinds, (rng.choice(variant.kinds),)])
        for villain in rng.sample(list(swarm.nodes.values()), (len(swarm.nodes) - 1) // 3):
            _corrupt(swarm, villain, rng.choice(kinds))
    elif variant.abuses_trust:
        _corrupt(swarm, rng.choice(list(swarm.nodes.values())), rng.choice(variant.kinds))
    elif len(swarm.nodes) > 2 and rng.random() < 0.35:
        _corrupt(swarm, rng.choice(list(swarm.nodes.values())), rng.choice(KINDS))
    if variant.needs_liar and not swarm.has_liar:
        raise NobodyLies
    for index, node in enumerate(swarm.nodes.values()):
        if num_ghosts and node.mischief is not None:
            world.at(0.0, functools.partial(_start_behind_entry_0, swarm, node))
            continue
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
    if _has_kind(swarm, "slow_donor"):
        world.run_until(swarm.is_settled, world.now + HAUNTED_MAX_S)
    for _ in range(DECISIONS_MAX if swarm.limits.final_depth else 0):
        if not _operators_decide(swarm):
            break
        world.run_until(swarm.is_settled, world.now + QUIET_S)
    swarm.check_quiet()


def _corrupt(swarm: Swarm, villain: Node, kind: str) -> None:
    swarm.may_fork = swarm.has_liar = True
    made = TrustMischief if kind in TRUST_KINDS else Mischief
    villain.mischief = made(kind, keys_of(villain.name), swarm.world.rng)
    if isinstance(villain.mischief, TrustMischief) and kind == "poisons":
        swarm.is_spoiled = villain.mischief.spoils
    if kind == "slow_donor":
        villain.is_training = False  # alone with an entry of its own it may be as slow as it likes: nobody else has it
    swarm.world.log(f"{villain.name} {kind}")


def _plan_ghosts(swarm: Swarm, rng: random.Random, variant: Variant) -> int:
    """How many ghosts there are beside fewer others; 0 in half of the schedules. They come with invites, or (M11) are
    on probation for ever. Ready ones come only so: members that are most may own every segment, and whoever owns none
    lacks results alone and blames nobody in time (R12.1; lab book 52)."""
    if variant.has_coalition or not set(variant.kinds) & set(GHOSTS) or rng.random() > GHOSTS_PART:
        return 0
    if "silent_ghost" not in variant.kinds or rng.random() < 0.5:
        swarm.probation_rounds = swarm.probation_rounds or 3
    return rng.choice([2, 3, 4, 6])


def _count_wanted(rng: random.Random, variant: Variant, num_ghosts: int) -> int:
    """0: as many peers as in any schedule."""
    if num_ghosts:
        return num_ghosts + rng.randint((num_ghosts + 1) // 2, num_ghosts - 1)
    if variant.has_coalition:
        return rng.choice(COALITION_OF)
    return rng.choice([3, 3, 4, 4, 5, 6]) if variant.abuses_trust else 0


def _haunt(swarm: Swarm, rng: random.Random, variant: Variant, count: int) -> None:
    """Most are ghosts, but not who begins the run. Who comes before entry 0 would be no newcomer to it."""
    kinds = [kind for kind in variant.kinds if kind in GHOSTS and (swarm.probation_rounds or kind == "silent_ghost")]
    for ghost in rng.sample(list(swarm.nodes.values())[1:], count):
        _corrupt(swarm, ghost, rng.choice(kinds))
        ghost.is_training = ghost.is_lost = True  # no fault starts it before its time


def _start_behind_entry_0(swarm: Swarm, ghost: Node) -> None:
    if any(node.disk.log for node in swarm.nodes.values()):
        ghost.is_lost = False
        ghost.start()
    else:
        swarm.world.after(1.0, functools.partial(_start_behind_entry_0, swarm, ghost))


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
    A branch that its liar withholds is asked for a few times (R22), at worst by one honest peer after the other: who
    asks makes no proposal. One sound, heavier branch of a liar after the other takes everybody along each time: the
    time counts from the last one, but not for ever.
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
        num_asking = sum(node.is_up and node.mischief is None for node in swarm.nodes.values())
        world.run_until(is_over, world.now + num_asking * UNAVAILABLE_MAX * swarm.limits.recovery_retry_s)
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


def _has_kind(swarm: Swarm, *kinds: str) -> bool:
    return any(node.mischief is not None and node.mischief.kind in kinds for node in swarm.nodes.values())


def _calm_max(swarm: Swarm) -> float:
    """In a big crowd a phase alone takes 12 to 30 s. In a smaller one each observer that owns a segment may wait for a
    liar that sends it nothing: it is in no group with it, so its blame keeps nobody out (R12). With six peers three
    may, one attempt each. And of two that never vote whoever blames both goes first, as in most conflicts (R12.3)."""
    if _has_kind(swarm, *GHOSTS, "slow_donor"):
        return HAUNTED_MAX_S
    num = len(swarm.nodes)
    is_slow = num >= 16 or (num >= 8 and swarm.has_liar) or (num >= 6 and _has_kind(swarm, "stalls", "never_votes"))
    return 2 * CALM_MAX_S if is_slow else CALM_MAX_S


def _check_progress(swarm: Swarm, before: int) -> None:
    if swarm.limits.has_majority_quorum and (swarm.has_liar or swarm.has_lost_disk):
        return  # half of the contributors may be gone for ever: then waiting is what the operator asked for
    honest = [n for n in swarm.nodes.values() if n.is_up and n.trains and n.mischief is None]
    if all(n.machine.chain.is_on_probation(n.name) for n in honest):
        return  # a liar trains alone, nobody must follow it; or who is there waits for a member (M11)
    if any(waits_for_its_operator(n) for n in honest):
        return
    after = swarm.rounds_finished
    if after < before + 1:
        states = ", ".join(f"{n.name}: {n.machine.status}" for n in swarm.nodes.values() if n.is_up)
        raise Broken(f"no round in {_calm_max(swarm):g} calm seconds or more ({before} -> {after}); {states}")
