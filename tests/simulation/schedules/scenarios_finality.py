"""Directed schedules for final entries (R28): who stays, who follows, and what the operator's word does."""

from dataclasses import replace

from dilocoxd.machines.chain import entry_tokens
from dilocoxd.machines.round.inputs import NEWEST_READ, Event, RecoveryFinished
from tests.simulation.peer.node import Node, head_of
from tests.simulation.schedules.scenario_tools import _cut, _result, _swarm, _until
from tests.simulation.swarm import Swarm

FINAL_DEPTH = 3


def _split(*, has_files: bool = False, deep: int, shallow: int) -> tuple[Swarm, list[Node], list[Node]]:
    """(swarm, heavier half, lighter half) whole again after one half alone made `deep` entries, the other `shallow`."""
    swarm, nodes = _swarm(4, has_files=has_files, may_fork=True)
    swarm.limits = replace(swarm.limits, final_depth=FINAL_DEPTH)
    many, few = nodes[:2], nodes[2:]
    for node in few:
        node.phase_s = 5.0 if shallow == deep else 25.0
    _until(swarm, lambda: all(node.is_up and node.machine.chain.height > 1 for node in nodes))
    _cut(swarm, many, few, is_cut=True)
    start = max(len(node.disk.log) for node in nodes)
    _until(swarm, lambda: all(len(node.disk.log) >= start + deep for node in many), 400.0)
    _until(swarm, lambda: all(len(node.disk.log) >= start + shallow for node in few), 400.0)
    heavy, light = sorted((many, few), key=lambda half: -_weight(half[0]))
    _cut(swarm, many, few, is_cut=False)
    return swarm, heavy, light


def _weight(node: Node) -> int:
    return sum(entry_tokens(stored.signed.entry) for stored in node.disk.log)


def halves_beyond_final_entries_wait_for_the_operator() -> str:
    """Both halves go on, each on its own branch; the lighter one says why. One word to each of its sites, one chain."""
    swarm, heavy, light = _split(deep=8, shallow=8)
    heights = [len(half[0].disk.log) for half in (heavy, light)]
    swarm.world.run(swarm.world.now + 90.0)
    grown = [len(half[0].disk.log) - before for half, before in zip((heavy, light), heights, strict=True)]
    if len({node.machine.chain.head for node in (*heavy, *light)}) == 1:
        return "one half has left its final entries"
    if min(grown) < 3:
        return f"the halves made {grown} entries in 90 s beside each other"
    if not all(node.kept_from for node in light):
        return "the lighter half does not say what keeps it"
    for node in light:
        node.adopt(heavy[0])
    return _result(swarm)


def shallow_half_follows_by_itself() -> str:
    """What is final on the other branch keeps nobody on ours."""
    swarm, heavy, light = _split(deep=12, shallow=1)
    return _result(swarm) or ("somebody was kept" if any(node.kept_from for node in (*heavy, *light)) else "")


def who_follows_compares_the_votes_where_the_branches_part() -> str:
    """R27: there who voted for both has one parent, however many entries the other branch has made since."""
    swarm, heavy, light = _split(deep=NEWEST_READ + 4, shallow=1)
    own, theirs = ([stored.signed.entry for stored in half[0].disk.log] for half in (light, heavy))
    fork = next(number for number, (one, other) in enumerate(zip(own, theirs, strict=False)) if one != other)
    read: list[int] = []
    follower = light[0]
    feed = follower.feed

    def note(event: Event) -> None:
        if isinstance(event, RecoveryFinished) and not read:
            read.extend(signed.entry.round for signed in event.newest)
        feed(event)

    follower.feed = note  # type: ignore[method-assign]
    problem = _result(swarm)
    if problem or (read[:1] == [fork] and read[-1] - fork > NEWEST_READ):
        return problem
    return f"the branches part at {fork}, and of the other one {read} were read"


def operator_may_choose_the_lighter_half() -> str:
    """And who has been told stays there, though the branch that it left is heavier."""
    swarm, heavy, light = _split(deep=8, shallow=8)
    swarm.world.run(swarm.world.now + 20.0)
    for node in heavy:
        node.adopt(light[0])
    return _result(swarm)


def who_dies_while_it_adopts_is_adopted_after_all() -> str:
    """On both kinds of disk: the word is kept, and carried out by the next process."""
    return _dies_while_it_adopts(has_files=False) or _dies_while_it_adopts(has_files=True)


def _dies_while_it_adopts(*, has_files: bool) -> str:
    swarm, heavy, light = _split(has_files=has_files, deep=8, shallow=8)
    victim, other = light
    try:
        swarm.world.run(swarm.world.now + 20.0)
        victim.adopt(heavy[0])
        other.adopt(heavy[0])
        _until(swarm, lambda: victim.name in swarm.ledger.given_up, 600.0)
        victim.crash()
        victim.start()
        before = head_of(victim.disk.log)
        return _result(swarm) or ("" if head_of(victim.disk.log) != before else "it stays where it was")
    finally:
        swarm.close()


FINALITY = (
    halves_beyond_final_entries_wait_for_the_operator,
    shallow_half_follows_by_itself,
    who_follows_compares_the_votes_where_the_branches_part,
    operator_may_choose_the_lighter_half,
    who_dies_while_it_adopts_is_adopted_after_all,
)
