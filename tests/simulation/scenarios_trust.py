"""Directed schedules with liars that abuse trust (liars.py): what they cost, and that nobody believes them."""

from collections.abc import Callable

from dilocoxd.machines.recovery.interface import Ask, AskPayload
from tests.simulation.liars import TrustMischief
from tests.simulation.peer.node import Node
from tests.simulation.peer.recovering import Recovery
from tests.simulation.peer.signing import keys_of
from tests.simulation.schedules.scenario_tools import _result, _swarm, _until
from tests.simulation.schedules.scenarios_probation import LONG
from tests.simulation.swarm import Swarm

CALM_S = 60.0
ROUNDS_MIN = 5
"""Beside three ghosts, who coordinate in their turn: 5 and more, and 3 where each attempt waits for them."""
HAUNTED_ROUNDS_MIN = 3
"""Where four of six coordinate and propose nothing."""
NUM_ENTRIES = 12
CAUGHT_UP_S = 20.0
"""A newcomer has so many entries after this time at most; with a slow donor for all of them it would be 100 s."""

HALF_S = 1.2
"""Of the 3 s that a donor has for a small payload (`quick_recovery`)."""


def _begin(count: int, num_liars: int, kind: str, seed: int = 7) -> tuple[Swarm, list[Node], list[Node]]:
    """(swarm, the liars, the others): all were training together until now."""
    swarm, nodes = _swarm(count, seed)
    swarm.may_fork = swarm.has_liar = True
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 2 for node in nodes))
    for liar in nodes[:num_liars]:
        liar.mischief = TrustMischief(kind, keys_of(liar.name), swarm.world.rng)
    return swarm, nodes[:num_liars], nodes[num_liars:]


def silent_ghosts_are_waited_for_once() -> str:
    """Three of five fall silent, but for their heartbeats: the first attempt waits for them, and no other one."""
    swarm, _, honest = _begin(5, 3, "silent_ghost")
    before = min(node.machine.chain.height for node in honest)
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = min(node.machine.chain.height for node in honest) - before
    return _result(swarm) or ("" if rounds >= ROUNDS_MIN else f"{rounds} rounds in {CALM_S:g} s")


def ready_ghosts_that_are_most_are_left_out() -> str:
    """Four of six members are ready in each attempt and do nothing else. Whoever has seen that proposes without them:
    the first round took 28 attempts and 130 s, as long as whoever blamed four was in most conflicts itself."""
    swarm, _, honest = _begin(6, 4, "ready_ghost", seed=9)  # of 7 to 10 the one that takes longest
    before = min(node.machine.chain.height for node in honest)
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = min(node.machine.chain.height for node in honest) - before
    return _result(swarm) or ("" if rounds >= HAUNTED_ROUNDS_MIN else f"{rounds} rounds in {CALM_S:g} s")


def lone_member_restarts_beside_silent_ghosts() -> str:
    """The only member of an open run restarts, and has forgotten who of those on probation is silent. Who remembers it
    goes on to the next attempt after half of the time for which the member waits: what it waited counts there."""
    swarm, (member,) = _swarm(1, probation_rounds=LONG)
    _until(swarm, lambda: member.is_up and member.machine.chain.height > 0)
    others = [swarm.add(f"q{index}", 4.0) for index in range(5)]
    for node in others:
        node.start()
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 3 for node in others), 200.0)
    swarm.may_fork = swarm.has_liar = True
    for ghost in others[2:]:
        ghost.mischief = TrustMischief("silent_ghost", keys_of(ghost.name), swarm.world.rng)
    swarm.world.run(swarm.world.now + CALM_S / 2)
    member.crash()
    swarm.world.run(swarm.world.now + 1.0)
    member.start()
    before = member.machine.chain.height
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = member.machine.chain.height - before
    return _result(swarm) or ("" if rounds >= ROUNDS_MIN else f"{rounds} rounds in {CALM_S:g} s")


def lone_branch_from_genesis_is_left_again() -> str:
    """Entries of one liar from entry 0 on, the last one heavier than all of the others' together, voted for on a state
    that never was: what was taken of them is too light, and everybody comes back."""
    swarm, (liar,), honest = _begin(4, 1, "forks_at_genesis")
    assert isinstance(liar.mischief, TrustMischief)
    mischief = liar.mischief
    mischief.forge = lambda node: mischief.fork_at_genesis(node, 8, 7, is_even=False)  # type: ignore[method-assign]
    before = min(node.machine.chain.height for node in honest)
    swarm.world.run(swarm.world.now + CALM_S)
    for node in honest:
        if any(c.peer == liar.name and c.phase >= 1000 for s in node.disk.log for c in s.signed.entry.contributions):
            return f"{node.name} is on the liar's branch"
    if not swarm.ledger.reported:
        return "nobody tried the liar's branch"
    rounds = min(node.machine.chain.height for node in honest) - before
    return _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {CALM_S:g} s")


def slow_donor_does_not_hold_a_newcomer() -> str:
    """The first peer that a newcomer asks gives one entry at a time, each answer just before its time is over; the
    others have the same chain, and answer at once."""
    return _caught_up_late(1, None, CAUGHT_UP_S)


def donors_within_half_of_their_time_do_not_hold_a_newcomer() -> str:
    """Two of three give each payload just before half of its time is over. They come from the third one as soon as
    each has given one."""
    return _caught_up_late(2, lambda recovery, ask: HALF_S if isinstance(ask, AskPayload) else 0.0, CAUGHT_UP_S / 2)


def _caught_up_late(num_slow: int, late: Callable[[Recovery, Ask], float] | None, limit_s: float) -> str:
    """What is wrong with a newcomer that meets these slow donors first. `late`: of an answer, in place of their own."""
    swarm, donors, honest = _begin(3, num_slow, "slow_donor")
    for donor in donors:
        mischief = donor.mischief
        assert isinstance(mischief, TrustMischief)
        mischief.page, mischief.answers_left = 1 if late is None else 1000, 1e9
        mischief.late = late or mischief.late  # type: ignore[method-assign]
        donor.is_training = False
    _until(swarm, lambda: all(node.machine.chain.height >= NUM_ENTRIES for node in honest), 200.0)
    newcomer = swarm.add("q", 4.0)
    newcomer.start()
    swarm.world.run(swarm.world.now + limit_s)
    if newcomer.machine.chain.height < NUM_ENTRIES:
        return f"a newcomer is at height {newcomer.machine.chain.height} after {limit_s:g} s"
    return _result(swarm)


TRUST: tuple[Callable[[], str], ...] = (
    silent_ghosts_are_waited_for_once,
    ready_ghosts_that_are_most_are_left_out,
    lone_member_restarts_beside_silent_ghosts,
    lone_branch_from_genesis_is_left_again,
    slow_donor_does_not_hold_a_newcomer,
    donors_within_half_of_their_time_do_not_hold_a_newcomer,
)
