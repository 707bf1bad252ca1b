"""Directed schedules for entries that spoil the model: a majority takes them back, a minority does not (R29)."""

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

from dilocoxd.ids import Digest, PeerId
from dilocoxd.machines.round import outputs as c
from dilocoxd.machines.round.inputs import RoundMessage
from dilocoxd.wire.entry import Entry, entry_hash
from dilocoxd.wire.messages import Committed, TakeBack, Vote
from tests.simulation.ledger import LOST
from tests.simulation.peer.node import Node
from tests.simulation.schedules.scenario_tools import _cut, _holds, _result, _swarm, _undone, _until
from tests.simulation.swarm import Swarm


class Poison:
    """The next entries that anybody writes spoil the model, for whom they do."""

    def __init__(self, swarm: Swarm, count: int, nodes: list[Node]) -> None:
        self.found: list[Digest] = []
        self._first = max(len(node.disk.log) for node in swarm.nodes.values())
        self._known = {entry_hash(stored.signed.entry) for node in nodes for stored in node.disk.log}
        self._count = count
        self._names = {node.name for node in nodes}
        swarm.is_spoiled = self.is_spoiled

    def is_spoiled(self, node: Node, entry: Entry) -> bool:
        digest = entry_hash(entry)
        if entry.round == self._first and digest not in self.found and len(self.found) < self._count:
            self.found.append(digest)
        return digest in self.found and node.name in self._names


def _begin(
    count: int, *, spoiled: int = 1, blind: int = 0, is_majority: bool = False, has_files: bool = False
) -> tuple[Swarm, list[Node], Poison]:
    """(swarm, its peers, what spoils the next entries for all but the last `blind`)."""
    swarm, nodes = _swarm(count, has_files=has_files)
    swarm.limits = replace(swarm.limits, has_majority_quorum=is_majority)
    _until(swarm, lambda: all(node.is_up and len(node.machine.chain.recent_contributors) == count for node in nodes))
    return swarm, nodes, Poison(swarm, spoiled, nodes[: count - blind])


def _went_on(swarm: Swarm, nodes: list[Node], poison: Poison, rounds: int = 3) -> str:
    """What is wrong once there was time to take it back and go on."""
    if not poison.found:
        return "nothing was spoiled"
    return _undone(swarm, nodes, poison.found, "an entry that spoiled the model", rounds)


def spoiling_entry_is_taken_back() -> str:
    """All find no finite loss, vote, leave it, stand on the bits of before, and go on; no work in it comes back."""
    return _taken_back(is_majority=False) or _taken_back(is_majority=True)


def _taken_back(*, is_majority: bool) -> str:
    swarm, nodes, poison = _begin(4, is_majority=is_majority)
    _until(swarm, lambda: all(_holds(node, poison.found) for node in nodes), 120.0)
    entry = next(s.signed.entry for s in nodes[0].disk.log if entry_hash(s.signed.entry) in poison.found)
    problem = _went_on(swarm, nodes, poison)
    fates = {swarm.ledger.fates[c.peer, c.phase] for c in entry.contributions}
    return problem or ("" if fates == {LOST} else f"work in it is {fates}")


def three_spoiling_entries_are_taken_back_and_no_fourth() -> str:
    """Whoever spoils all cannot keep a run busy for ever: then it waits for its operator."""
    swarm, nodes, poison = _begin(4, spoiled=4)
    swarm.world.run(swarm.world.now + 150.0)
    if len(poison.found) < 4 or not all(_holds(node, poison.found[3:]) for node in nodes):
        return f"{len(poison.found)} entries spoiled the model, and no fourth one is kept"
    return "" if not any(_holds(node, poison.found[:3]) for node in nodes) else "one of three is kept"


def minority_takes_nothing_back() -> str:
    """Two of five say that nothing can be trained: the others go on with that entry."""
    swarm, nodes, poison = _begin(5, blind=3)
    swarm.world.run(swarm.world.now + 60.0)
    if not poison.found or not all(_holds(node, poison.found) for node in nodes):
        return "an entry that most can train from was left"
    swarm.is_spoiled = lambda node, entry: False
    return _result(swarm)


def who_has_no_witness_votes_with_who_has() -> str:
    """Two of four were restarted and do not know the newest sound state: they follow who trained on it."""
    swarm, nodes, poison = _begin(4)
    for node in nodes[:2]:
        node.saw_sound = False
    _until(swarm, lambda: all(_holds(node, poison.found) for node in nodes), 120.0)
    return _went_on(swarm, nodes, poison)


def lost_votes_are_said_again() -> str:
    """One hears of no vote for a while, and takes the entry back with the others' certificate."""
    swarm, nodes, poison = _begin(4)
    deaf = nodes[3]
    plain = swarm.is_dropped
    swarm.is_dropped = lambda source, message: isinstance(message, TakeBack) and source == deaf.name
    _until(swarm, lambda: all(_holds(node, poison.found) for node in nodes), 120.0)
    _cut(swarm, nodes[:3], [deaf], is_cut=True)
    _until(swarm, lambda: not any(_holds(node, poison.found) for node in nodes[:3]), 240.0)
    _cut(swarm, nodes[:3], [deaf], is_cut=False)
    swarm.is_dropped = plain
    swarm.may_fork = True
    return _went_on(swarm, nodes, poison)


def who_was_locked_on_it_does_not_finish_it() -> str:
    """One voted for it and heard no other vote, nor of the commit."""
    swarm, nodes, poison = _begin(4)
    victim, others = nodes[3], nodes[:3]
    height = len(victim.disk.log)
    plain, swarm.may_fork = swarm.post, True

    def post(source: PeerId, target: PeerId, message: RoundMessage) -> None:
        if target != victim.name or not isinstance(message, Vote | Committed):
            plain(source, target, message)

    with mock.patch.object(swarm, "post", post):
        _until(swarm, lambda: any(len(node.disk.log) > height for node in others), 120.0)
        _until(swarm, lambda: bool(poison.found), 120.0)
        _cut(swarm, others, [victim], is_cut=True)
        _until(swarm, lambda: not any(_holds(node, poison.found) for node in others), 240.0)
    _cut(swarm, others, [victim], is_cut=False)
    lock = victim.machine.height.lock
    if lock is None or lock.entry_hash not in poison.found:
        return "it is not locked on the entry"
    return _went_on(swarm, nodes, poison)


def heavier_branch_with_it_is_not_taken() -> str:
    """One cannot see that it is spoiled, and alone makes more entries on it than the others without it."""
    swarm, nodes, poison = _begin(4, blind=1)
    swarm.may_fork = True
    blind, others = nodes[3], nodes[:3]
    _until(swarm, lambda: all(_holds(node, poison.found) for node in nodes), 120.0)
    _cut(swarm, others, [blind], is_cut=True)
    _until(swarm, lambda: not any(_holds(node, poison.found) for node in others), 240.0)
    for node in others:
        node.phase_s = 1e6  # none of them offers anything for now
    top = len(blind.disk.log)
    _until(swarm, lambda: len(blind.disk.log) >= top + 3, 400.0)
    for node in others:
        node.phase_s = 4.0
        node.later(1.0, node._boundary)
    _cut(swarm, others, [blind], is_cut=False)
    return _went_on(swarm, nodes, poison)


def who_dies_while_it_takes_back_does_it_after_all() -> str:
    """All of them, each before another one of its steps; on both kinds of disk."""
    for has_files, first in ((False, 1), (False, 5), (True, 4)):
        if problem := _die(first, has_files=has_files):
            return f"{first} commands and more{' on files' if has_files else ''}: {problem}"
    return ""


def _die(first: int, *, has_files: bool) -> str:
    swarm, nodes, poison = _begin(4, has_files=has_files)
    for place, node in enumerate(nodes):
        _dies_after(node, first + place)
    try:
        _until(swarm, lambda: not any(node.is_up for node in nodes), 240.0)
        for node in nodes:
            node.start()
        return _went_on(swarm, nodes, poison)
    finally:
        swarm.close()


def _dies_after(node: Node, commands: int) -> None:
    """So many commands and effects after it has put the certificate on its disk."""
    execute, is_armed = node._execute, []

    def watched(command: c.Command) -> None:
        if isinstance(command, c.PersistReverts) and not is_armed:
            is_armed.append(True)
            node.crash_after = commands
        execute(command)

    node._execute = watched  # type: ignore[method-assign]


REVERTS: tuple[Callable[[], str], ...] = (
    spoiling_entry_is_taken_back,
    three_spoiling_entries_are_taken_back_and_no_fourth,
    minority_takes_nothing_back,
    who_has_no_witness_votes_with_who_has,
    lost_votes_are_said_again,
    who_was_locked_on_it_does_not_finish_it,
    heavier_branch_with_it_is_not_taken,
    who_dies_while_it_takes_back_does_it_after_all,
)
