"""Directed schedules of an open run: fresh ids are on probation, and decide nothing however many they are (M11)."""

from collections.abc import Callable
from dataclasses import replace

from dilocoxd.ids import PeerId
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of
from tests.simulation.schedules.byzantine import Mischief
from tests.simulation.schedules.scenario_tools import _cut, _result, _swarm, _until
from tests.simulation.swarm import Swarm

LONG = 1000
"""Rounds of probation that no schedule sees the end of."""
CALM_S = 25.0


def _open_run(
    num_fresh: int, rounds: int, *, is_majority: bool = False, phase_s: float = 4.0
) -> tuple[Swarm, list[Node], list[Node]]:
    """(swarm, two founders, ids that came after the first entry), all of them training."""
    swarm, founders = _swarm(2, probation_rounds=rounds)
    swarm.limits = replace(swarm.limits, has_majority_quorum=is_majority)
    _until(swarm, lambda: all(node.is_up and len(node.machine.chain.served) == 2 for node in founders))
    fresh = [swarm.add(f"q{index}", phase_s) for index in range(num_fresh)]
    for node in fresh:
        node.start()
    names = {node.name for node in fresh}
    _until(swarm, lambda: bool(names & _named(founders[0])), 120.0)
    return swarm, founders, fresh


def _named(node: Node, last: int = 8) -> set[PeerId]:
    """Contributors of the newest entries of its log."""
    return {c.peer for stored in node.disk.log[-last:] for c in stored.signed.entry.contributions}


def _counted_wrongly(node: Node, rounds: int) -> str:
    """What the log of this node says of weights and places otherwise than M11, counted from its entries alone."""
    done: dict[PeerId, int] = {}
    for stored in node.disk.log:
        entry = stored.signed.entry
        peers = [c.peer for c in entry.contributions]
        before = {peer: done.get(peer, 0) if entry.round else rounds for peer in peers}
        parts = [64 if before[p] >= rounds else max(1, 64 * (before[p] + 1) // (rounds + 1)) for p in peers]
        if list(entry.ramps or (64,) * len(peers)) != parts:
            return f"entry {entry.round} weighs {peers} by {list(entry.ramps)}, not by {parts}"
        members = {peer for peer in peers if before[peer] >= rounds}
        if not members or not members & {vote.peer for vote in stored.signed.votes}:
            return f"entry {entry.round} of {peers} is of nobody but fresh ids"
        if len(peers) - len(members) > max(1, len(members) // 2):
            return f"entry {entry.round} has {len(peers) - len(members)} fresh ids beside {len(members)} others"
        done.update({peer: before[peer] + 1 for peer in peers})
    return ""


def weight_rises_with_every_entry() -> str:
    """One who enters: its weight rises from entry to entry, then it counts like a founder."""
    swarm, founders, (one,) = _open_run(1, 3)
    _until(swarm, lambda: not founders[0].machine.chain.is_on_probation(one.name), 200.0)
    swarm.world.run(swarm.world.now + 20.0)
    chain = founders[0].machine.chain
    if one.name not in chain.recent_contributors:
        return f"{one.name} is through and counts in no majority"
    return _counted_wrongly(founders[0], 3) or _result(swarm)


def majority_of_fresh_ids_is_none() -> str:
    """`quorum = majority`: three fresh ids and one founder of two, cut off from the other one, cannot go on."""
    swarm, founders, fresh = _open_run(3, LONG, is_majority=True)
    swarm.world.run(swarm.world.now + CALM_S)
    if founders[0].machine.chain.recent_contributors != {node.name for node in founders}:
        return "fresh ids count in a majority"
    _cut(swarm, [founders[1]], [founders[0], *fresh], is_cut=True)
    swarm.world.run(swarm.world.now + CALM_S)
    before = [len(node.disk.log) for node in (*founders, *fresh)]
    swarm.world.run(swarm.world.now + CALM_S)
    if before != [len(node.disk.log) for node in (*founders, *fresh)]:
        return "somebody went on without a majority of those who are not on probation"
    _cut(swarm, [founders[1]], [founders[0], *fresh], is_cut=False)
    return _result(swarm) or _counted_wrongly(founders[0], LONG)


def fresh_ids_alone_wait_for_a_member() -> str:
    """Both founders are away: three fresh ids train on and commit nothing. When one is back, rounds go on."""
    swarm, founders, fresh = _open_run(3, LONG)
    for node in founders:
        node.crash()
    swarm.world.run(swarm.world.now + CALM_S)
    before = [len(node.disk.log) for node in fresh]
    swarm.world.run(swarm.world.now + CALM_S)
    if before != [len(node.disk.log) for node in fresh]:
        return "fresh ids went on alone"
    for node in founders:
        node.start()
    swarm.world.run(swarm.world.now + CALM_S)
    rounds = len(founders[0].disk.log) - max(before)
    return _result(swarm) or _counted_wrongly(founders[0], LONG) or ("" if rounds > 2 else f"{rounds} rounds")


def sybil_majority_stops_and_replaces_nothing() -> str:
    """Four fresh ids against two founders: forged branches, blames, invented locks, no votes. Every entry is as
    M11 says, and rounds go on."""
    swarm, founders, fresh = _open_run(4, LONG)
    swarm.may_fork = swarm.has_liar = True
    kinds = ("forges_a_branch", "blames_everybody", "invents_locks", "never_votes")
    for node, kind in zip(fresh, kinds, strict=True):
        node.mischief = Mischief(kind, keys_of(node.name), swarm.world.rng)
    before = len(founders[0].disk.log)
    swarm.world.run(swarm.world.now + 4 * CALM_S)
    names = {node.name for node in fresh}
    if dropped := [name for name, _ in swarm.ledger.reported.items() if name not in names]:
        return f"{dropped} left entries of their own for a branch of fresh ids"
    rounds = len(founders[0].disk.log) - before
    problem = _counted_wrongly(founders[0], LONG) or _counted_wrongly(founders[1], LONG)
    return problem or _result(swarm) or ("" if rounds > 4 else f"{rounds} rounds in {4 * CALM_S:g} s")


PROBATION: tuple[Callable[[], str], ...] = (
    weight_rises_with_every_entry,
    majority_of_fresh_ids_is_none,
    fresh_ids_alone_wait_for_a_member,
    sybil_majority_stops_and_replaces_nothing,
)
