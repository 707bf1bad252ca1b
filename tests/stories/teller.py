"""Turns what the machines of a simulated swarm do into text that reads like a protocol's life.

A line is an event at a peer; below it what the machine ordered, and what it waits for when that changed. What changes
nothing (a repeated message, a heartbeat, a counted segment) is left out; repetitions are counted in one line.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dilocoxd.machines.exchange.facts import Reduced, SegmentReceived, SegmentSent, TransferFailed
from dilocoxd.machines.exchange.orders import CancelTransfers, OrderPass, OrderReduce, SendSegment
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.rollback import dropped_phases
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.wire.messages import Ready
from tests.simulation.peer.node import Node
from tests.stories.phrases import names, of_commands, of_event, short
from tests.stories.recovery_phrases import WOKE, of_answer, of_effects

NUMBER = re.compile(r"\d+(\.\d+)?")
NOT_TOLD = (CancelTransfers,)
ROUTINE = (SegmentReceived, SegmentSent, TransferFailed, Reduced, e.DeadlineReached)
ROUTINE_ORDERS = (SendSegment, OrderReduce, OrderPass)
Sent = TypeVar("Sent")


@dataclass(frozen=True)
class Handled:
    """One event and what came of it: what a story is judged by."""

    node: Node
    event: e.Event | r.RecoveryEvent | None
    commands: tuple[c.Command | r.Effect, ...]


@dataclass
class Known:
    """What the reader knows of a peer already."""

    place: tuple[str, int, int] | None = None
    """State, round, attempt."""
    reason: str = ""
    said: dict[str, object] = field(default_factory=dict)
    """Last message to each target."""
    told: set[str] = field(default_factory=set)
    """Reasons that were told in this place."""
    blocks: set[tuple[str, ...]] = field(default_factory=set)
    """What was written of it in this place."""
    views: dict[str, tuple[bool, bool, str]] = field(default_factory=dict)
    asked: dict[int, r.Ask] = field(default_factory=dict)
    owed: set[int] = field(default_factory=set)
    """Phases that went back into the feedback."""


class Teller:
    """Listener of one swarm. `lines` is the story so far; nothing is written while `is_open` is False."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.handled: list[Handled] = []
        self.is_open = False
        self.spotlight: frozenset[str] = frozenset()
        """Whose machines are shown."""
        self.is_brief = True
        """Streams, reductions and the outer step are counted instead of told."""
        self.known: dict[str, Known] = {}
        self.num_repeated: dict[str, int] = {}
        self.num_moved: dict[str, int] = {}
        self.last = ("", "")
        """Of which machine of whom the last lines are."""

    # --- what the simulator calls

    def fed(self, node: Node, event: e.Event, commands: Sequence[c.Command]) -> None:
        known = self.known.setdefault(node.name, Known())
        change = self._note_views(known, event) if isinstance(event, e.PeersChanged) else ""
        fresh = [command for command in commands if self._is_fresh(known, command)]
        reason = self._note_place(known, node.machine, is_said_again=bool(fresh))
        if not self.is_open or node.name not in self.spotlight:
            return
        self.handled.append(Handled(node, event, tuple(commands)))
        orders = of_commands(fresh)
        if self.is_brief and self._is_routine(event, fresh):
            self.num_moved[node.name] = self.num_moved.get(node.name, 0) + bool(orders or reason)
        elif orders or reason:
            self._tell_once(known, node, of_event(event, change=change), orders, reason)
        elif commands and not all(isinstance(command, NOT_TOLD) for command in commands):
            self.num_repeated[node.name] = self.num_repeated.get(node.name, 0) + 1

    def recovering(self, node: Node, event: r.RecoveryEvent | None, effects: Sequence[r.Effect]) -> None:
        known = self.known.setdefault(node.name, Known())
        for effect in effects:
            if isinstance(effect, r.AskEntries | r.AskSnapshots | r.AskOffer | r.AskChunk | r.AskPayload):
                known.asked[effect.request] = effect
        orders, said = of_effects(node.name, effects), of_answer(event, known.asked) if event is not None else ""
        orders += self._note_owed(known, node, effects)
        if not self.is_open or node.name not in self.spotlight:
            return
        self.handled.append(Handled(node, event, tuple(effects)))
        self._write_recovery(node, said if event is not None else "begins", orders)

    # --- what a story calls

    def tell(self, now: float, text: str) -> None:
        """Something that no machine says: a crash, a cut, who stands where."""
        self._flush()
        self.lines += ["", f"{now:8.2f}  * {text}"]

    def show(self, now: float, nodes: Sequence[Node]) -> None:
        """Where everybody stands, and open the curtain."""
        self.is_open = True
        for node in nodes:
            if node.is_up and node.name in self.spotlight:
                chain = node.machine.chain
                self.lines.append(f"{now:8.2f}  {node.name} stands at height {chain.height}, head {short(chain.head)}")
                self.lines.append(f"{'':10}  {self._waits(node.machine)}")

    def forget(self) -> None:
        """Begin the story anew."""
        self.close()
        self.lines, self.handled = [], []

    def close(self) -> None:
        """Nothing more is written."""
        self._flush()
        self.is_open = False

    # --- how

    def _tell_once(self, known: Known, node: Node, event: str, orders: Sequence[str], reason: str) -> None:
        """The same answer to the same message is counted only."""
        block = (event, *orders, reason)
        if block in known.blocks and not reason:
            self.num_repeated[node.name] = self.num_repeated.get(node.name, 0) + 1
            return
        known.blocks.add(block)
        self._write(node, event, orders, reason)

    def _write_recovery(self, node: Node, said: str, orders: Sequence[str]) -> None:
        """What follows at once from a step of our own site stands below the line before it."""
        if said == WOKE and not orders:
            return
        if said:
            self._write(node, f"recovery {said}", orders, "")
        elif orders and self.last == (node.name, "recovery") and not self.num_repeated and not self.num_moved:
            self.lines += [f"{'':10}  {order}" for order in orders]
        elif orders:
            self._write(node, "recovery goes on", orders, "")
        self.last = (node.name, "recovery") if said or orders else self.last

    def _write(self, node: Node, event: str, orders: Sequence[str], reason: str) -> None:
        self._flush()
        self.last = (node.name, "round")
        self.lines.append(f"{node.world.now:8.2f}  {node.name} {event}")
        self.lines += [f"{'':10}  {order}" for order in orders]
        if reason:
            self.lines.append(f"{'':10}  {reason}")

    def _flush(self) -> None:
        if moved := [name for name, count in self.num_moved.items() if count]:
            self.lines.append(f"{'':8}  ... segments arrive at {names(moved)} and are reduced")
        if self.num_repeated:
            count = sum(self.num_repeated.values())
            self.lines.append(f"{'':8}  ... repeated: {count} messages of {names(self.num_repeated)}")
        self.num_moved, self.num_repeated = {}, {}

    @staticmethod
    def _is_routine(event: e.Event, fresh: Sequence[c.Command]) -> bool:
        """The exchange as it always goes."""
        if isinstance(event, e.DeadlineReached) and not fresh:
            return False
        return isinstance(event, ROUTINE) and all(isinstance(command, ROUTINE_ORDERS) for command in fresh)

    def _is_fresh(self, known: Known, command: c.Command) -> bool:
        """Not the same message to the same peer once more. A restarted Ready counts as new when it says more."""
        if not isinstance(command, c.Send | c.Broadcast):
            return True
        target = command.peer if isinstance(command, c.Send) else "all"
        kind = type(command.message).__name__
        is_same = known.said.get(f"{target} {kind}") == command.message
        known.said[f"{target} {kind}"] = command.message
        return not is_same

    @staticmethod
    def _note_owed(known: Known, node: Node, effects: Sequence[r.Effect]) -> list[str]:
        """What a fork drops of our own work, and what of it comes back with an entry."""
        told = []
        for effect in effects:
            if isinstance(effect, r.LeaveOwn):
                known.owed.update(dropped_phases(node.name, effect.own, effect.branch))
            elif isinstance(effect, r.TakeEntry):
                named = {one.phase for one in effect.signed.entry.contributions if one.peer == node.name}
                told += [f"== phase {phase} leaves the feedback again" for phase in sorted(named & known.owed)]
                known.owed -= named
        return told

    def _note_place(self, known: Known, machine: RoundMachine, *, is_said_again: bool) -> str:
        """What the peer waits for, if that is another thing than before; counters in it do not matter.

        One that was told in this place already is told again only where the peer also does something."""
        status = machine.status
        place, reason = (status.state, status.round, status.attempt), NUMBER.sub("#", status.waiting_for)
        if place != known.place:
            known.told, known.blocks = set(), set()
        is_new = (place, reason) != (known.place, known.reason) and (is_said_again or reason not in known.told)
        known.place, known.reason = place, reason
        known.told.add(reason)
        return self._waits(machine) if is_new else ""

    @staticmethod
    def _waits(machine: RoundMachine) -> str:
        status = machine.status
        state = status.state.replace("_", " ")
        return f"{state} ({status.round}, {status.attempt}), waits for: {status.waiting_for}"

    @staticmethod
    def _note_views(known: Known, event: e.PeersChanged) -> str:
        """Who came, went, began to train, or stands elsewhere."""
        before = known.views
        now = {view.peer: (view.is_live, view.is_training, f"{view.height} {short(view.head)}") for view in event.peers}
        known.views = {**now}
        told = []
        for peer, (is_live, trains, tip) in sorted(now.items()):
            was_live, trained, was_at = before.get(peer, (False, False, ""))
            if is_live != was_live:
                told.append(f"{peer} is {'there' if is_live else 'gone'}")
            elif is_live and trains != trained:
                told.append(f"{peer} {'trains' if trains else 'trains no more'}")
            elif is_live and tip != was_at:
                told.append(f"{peer} stands at {tip}")
        return ", ".join(told)


def messages(handled: Handled, kind: type[Sent]) -> list[Sent]:
    """The messages of this kind that were ordered in it."""
    found = [one.message for one in handled.commands if isinstance(one, c.Send | c.Broadcast)]
    return [message for message in found if isinstance(message, kind)]


__all__ = ["Handled", "Ready", "Teller", "messages"]
