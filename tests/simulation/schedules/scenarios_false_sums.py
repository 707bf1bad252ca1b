"""Directed schedules for entries with a false result: who finds it votes, a majority takes it back, its owner is left
out (R29.11, R29.12, X14)."""

from collections.abc import Callable
from dataclasses import replace
from unittest import mock

from dilocoxd.ids import Digest, PeerId
from dilocoxd.machines.round import outputs as c
from dilocoxd.wire.entry import Entry, entry_hash
from dilocoxd.wire.messages import Propose
from tests.simulation.peer.node import Node
from tests.simulation.schedules.scenario_tools import _cut, _holds, _result, _swarm, _undone, _until
from tests.simulation.schedules.scenarios_reverts import Poison
from tests.simulation.swarm import Swarm


class Liar:
    """As long as `count` entries have none, each new one that it has a part in has a false result of its own."""

    def __init__(self, swarm: Swarm, liar: Node, delays: dict[PeerId, float], count: int) -> None:
        self.false: dict[Digest, float] = {}
        """With the time at which it was committed first."""
        self.told: set[tuple[PeerId, int, Digest]] = set()
        self.delays = delays
        """After how long each of those that find it does."""
        self.owners: tuple[PeerId, ...] = (liar.name,)
        self.depth = 0
        """So many entries follow before an accomplice shows it: nobody finds it by itself."""
        self._swarm, self._name = swarm, liar.name
        self._known: set[Digest] = set()
        self.lie_from_now_on(count)
        swarm.proves = self.proves

    def lie_from_now_on(self, count: int) -> None:
        """Until so many entries have a false result."""
        self.count = count
        nodes = self._swarm.nodes.values()
        self._known.update(entry_hash(stored.signed.entry) for node in nodes for stored in node.disk.log)

    def proves(self, node: Node, entry: Entry) -> tuple[PeerId, ...] | None:
        digest, now = entry_hash(entry), self._swarm.world.now
        if digest not in self.false:
            is_part = any(named.peer == self._name for named in entry.contributions)
            if digest in self._known or not is_part or len(self.false) >= self.count:
                return None
            self.false[digest] = now
        if len(node.disk.log) <= entry.round + self.depth:
            return None
        place = node.name, node.epoch, digest
        delay = self.delays.get(node.name)
        if delay is None or now < self.false[digest] + delay or place in self.told:
            return None
        self.told.add(place)
        return self.owners


def _begin(
    count: int, lies: int = 1, *, slowest_s: float = 2.0, finders: int | None = None, is_majority: bool = False
) -> tuple[Swarm, list[Node], Liar]:
    """(swarm, its peers, the first of which lies). `finders`: how many of the others find it, all if None."""
    swarm, nodes = _swarm(count)
    swarm.limits = replace(swarm.limits, has_majority_quorum=is_majority)
    _until(swarm, lambda: all(node.is_up and len(node.machine.chain.recent_contributors) == count for node in nodes))
    found = nodes[1:] if finders is None else nodes[1 : 1 + finders]
    delays = {node.name: slowest_s * place / len(found) for place, node in enumerate(found, 1)}
    return swarm, nodes, Liar(swarm, nodes[0], delays, lies)


def _went_on(swarm: Swarm, nodes: list[Node], liar: Liar, rounds: int = 3) -> str:
    if not liar.false:
        return "nobody lied"
    return _undone(swarm, nodes, list(liar.false), "an entry with a false result", rounds)


def false_result_is_taken_back() -> str:
    """All but the liar find it at once, or not before rounds later, and vote; the liar follows like the others."""
    for slowest_s, is_majority in ((2.0, True), (12.0, False)):
        swarm, nodes, liar = _begin(4, slowest_s=slowest_s, is_majority=is_majority)
        _until(swarm, lambda nodes=nodes, liar=liar: bool(liar.false), 120.0)  # type: ignore[misc]
        if problem := _went_on(swarm, nodes, liar):
            return f"{slowest_s}, {is_majority}: {problem}"
    return ""


def minority_that_finds_it_takes_nothing_back() -> str:
    """Two of five find it, perhaps because their own sums are wrong: the entry stays, and the run goes on."""
    swarm, nodes, liar = _begin(5, finders=2)
    _until(swarm, lambda: bool(liar.false), 120.0)
    swarm.world.run(swarm.world.now + 60.0)
    if not all(_holds(node, list(liar.false)) for node in nodes):
        return "an entry that most find sound was left"
    return _result(swarm)


def what_is_found_too_late_stays() -> str:
    """More than 8 entries later nobody votes, and nobody follows votes."""
    swarm, nodes, liar = _begin(4, slowest_s=0.0)
    liar.delays = {}
    _until(swarm, lambda: bool(liar.false), 120.0)
    height = len(nodes[1].disk.log)
    _until(swarm, lambda: all(len(node.disk.log) > height + 8 for node in nodes), 240.0)
    liar.delays = {node.name: 0.0 for node in nodes[1:]}
    swarm.world.run(swarm.world.now + 30.0)
    if not all(_holds(node, list(liar.false)) for node in nodes):
        return "an old entry was left"
    return _result(swarm)


def who_lies_always_is_left_out() -> str:
    """Coordinators that found it propose no group with the liar: it can lie only where it coordinates itself, and six
    entries at most are taken back for that."""
    swarm, nodes, liar = _begin(4, lies=100)
    early: set[tuple[PeerId, int, int]] = set()
    late: set[tuple[PeerId, int, int]] = set()
    plain = Node._execute

    def watched(node: Node, command: c.Command) -> None:
        if isinstance(command, c.Send) and isinstance(message := command.message, Propose) and node is not nodes[0]:
            place = node.name, message.round, message.attempt
            knows = any((name, epoch) == (node.name, node.epoch) for name, epoch, _ in liar.told)
            if not knows:
                early.add(place)
            elif place not in early and any(named.peer == nodes[0].name for named in message.contributions):
                late.add(place)
        plain(node, command)

    with mock.patch.object(Node, "_execute", watched):
        swarm.world.run(swarm.world.now + 150.0)
    swarm.proves = None
    if late:
        return f"those who found it propose the liar: {sorted(late)[:3]}"
    lies = [digest for digest in liar.false if not any(_holds(node, [digest]) for node in nodes)]
    if not 1 <= len(lies) <= 6:
        return f"{len(lies)} entries were taken back"
    return _result(swarm)


def who_restarts_before_it_votes_follows_the_others() -> str:
    """One that found it dies before and after its vote; the others are more than half."""
    for delay in (0.2, 1.5):
        swarm, nodes, liar = _begin(5)
        _until(swarm, lambda liar=liar: bool(liar.false), 120.0)  # type: ignore[misc]
        swarm.world.at(swarm.world.now + delay, nodes[2].crash)
        swarm.world.at(swarm.world.now + delay + 2.0, nodes[2].start)
        if problem := _went_on(swarm, nodes, liar):
            return f"after {delay}: {problem}"
    return ""


def who_was_cut_off_meanwhile_follows() -> str:
    """One is cut off with the entry, finds it false alone, and comes back after the others have gone on."""
    swarm, nodes, liar = _begin(5)
    swarm.may_fork = True
    away, others = nodes[4], nodes[:4]
    _until(swarm, lambda: bool(liar.false) and all(_holds(node, list(liar.false)) for node in nodes), 120.0)
    _cut(swarm, others, [away], is_cut=True)
    _until(swarm, lambda: not any(_holds(node, list(liar.false)) for node in others), 240.0)
    swarm.world.run(swarm.world.now + 10.0)
    _cut(swarm, others, [away], is_cut=False)
    return _went_on(swarm, nodes, liar)


def entry_that_spoils_is_taken_back_after_three_false_ones() -> str:
    """What was taken back because it was false does not count where an entry is to go that spoiled the model."""
    swarm, nodes, liar = _begin(4, lies=3, slowest_s=0.0)
    liar.owners = ()
    _until(swarm, lambda: len(liar.false) == 3 and not any(_holds(node, list(liar.false)) for node in nodes), 300.0)
    poison = Poison(swarm, 1, nodes)
    _until(swarm, lambda: bool(poison.found) and all(_holds(node, poison.found) for node in nodes), 400.0)
    return _undone(swarm, nodes, poison.found, "an entry that spoiled the model", 3)


def lies_that_are_shown_late_undo_few_rounds() -> str:
    """Nobody can name the liar, and nobody finds what it makes before an accomplice shows it 7 entries later. That
    undoes 8 rounds once: the next such entry stays, and one that is shown sooner goes."""
    swarm, nodes, liar = _begin(4, lies=0, slowest_s=0.0)
    liar.owners = ()
    for depth, is_undone in ((7, True), (7, False), (2, True)):
        liar.depth, known = depth, set(liar.false)
        liar.lie_from_now_on(liar.count + 1)
        _until(swarm, lambda known=known: len(liar.false) > len(known), swarm.world.now + 100.0)  # type: ignore[misc]
        swarm.world.run(swarm.world.now + 60.0)
        (newest,) = liar.false.keys() - known
        if not any(name == nodes[1].name and digest == newest for name, _, digest in liar.told):
            return "it was not shown"
        if is_undone == any(_holds(node, [newest]) for node in nodes):
            return f"one that was shown {depth} entries later: is it undone? {not is_undone}"
    return _result(swarm)


FALSE_SUMS: tuple[Callable[[], str], ...] = (
    false_result_is_taken_back,
    minority_that_finds_it_takes_nothing_back,
    what_is_found_too_late_stays,
    who_lies_always_is_left_out,
    who_restarts_before_it_votes_follows_the_others,
    who_was_cut_off_meanwhile_follows,
    entry_that_spoils_is_taken_back_after_three_false_ones,
    lies_that_are_shown_late_undo_few_rounds,
)
