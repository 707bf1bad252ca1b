"""What a story is played on: a simulated swarm, a curtain, and the checks that every story ends with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dilocoxd.ids import PeerId
from dilocoxd.machines.round import outputs as c
from dilocoxd.machines.round.inputs import RoundMessage
from tests.simulation.peer.node import Node
from tests.simulation.peer.signing import keys_of
from tests.simulation.schedules.byzantine import Mischief
from tests.simulation.schedules.scenario_tools import _cut, _result
from tests.simulation.swarm import Swarm
from tests.simulation.world import World
from tests.stories.teller import Handled, Teller, messages

PHASE_S: Final = 4.0
SCENE_S: Final = 60.0
"""So long a story waits for a moment at most."""


@dataclass
class Stage:
    """One story while it is played. The seed decides the delays and the tokens, and is part of the story."""

    seed: int = 7
    options: dict[str, Any] = field(default_factory=dict)
    """Of the swarm."""

    def __post_init__(self) -> None:
        self.swarm = Swarm(World(self.seed), **{"sums_kind": ("toy", 1, 3), **self.options})
        self.teller = Teller()
        self.swarm.listener = self.teller

    @property
    def now(self) -> float:
        return self.swarm.world.now

    @property
    def nodes(self) -> list[Node]:
        return list(self.swarm.nodes.values())

    @property
    def handled(self) -> list[Handled]:
        """Since the curtain rose."""
        return self.teller.handled

    # --- who plays

    def enter(self, names: str, *, observers: str = "") -> list[Node]:
        """Peers with one letter each, started at time 0."""
        nodes = [self.swarm.add(name, PHASE_S, is_training=name not in observers) for name in names]
        for node in nodes:
            self.swarm.world.at(0.0, node.start)
        return nodes

    def lies(self, node: Node, kind: str = "says what follows") -> Mischief:
        """From now on this peer breaks the protocol (tests/simulation/schedules/byzantine.py)."""
        self.swarm.may_fork = self.swarm.has_liar = True
        node.mischief = Mischief(kind, keys_of(node.name), self.swarm.world.rng)
        return node.mischief

    # --- what happens

    def until(self, condition: Callable[[], bool], seconds: float = SCENE_S) -> None:
        """Go on until this holds. AssertionError if it does not within `seconds`."""
        limit = self.now + seconds
        while not condition():
            assert self.swarm.world.step() and self.now < limit, "the story's moment never came"

    def go_on(self, seconds: float) -> None:
        self.swarm.world.run(self.now + seconds)

    def skip(self, condition: Callable[[], bool], seconds: float = SCENE_S) -> None:
        """Go on until this holds, and write nothing of it down but how long it took and where everybody is then."""
        began = self.now
        self.teller.close()
        self.until(condition, seconds)
        self.tell(f"... {self.now - began:.0f} s later")
        self.teller.show(self.now, self.nodes)

    def nobody_trains(self) -> None:
        """Nothing new is offered from now on; what is offered already still counts."""
        self.swarm.is_training = False

    def form(self, node: Node) -> None:
        """A phase of this node ends now, and its contribution is committed by whoever is in reach of it."""
        height = len(node.disk.log)
        self.until(node.is_idle)
        node.worker.form()
        self.until(lambda: len(node.disk.log) > height and node.is_idle())

    def alone(self, *nodes: Node) -> bool:
        """None of these believes that anybody is there but these."""
        names = {node.name for node in nodes}
        return all(set(node.presence.live()) <= names for node in nodes)

    def round_of(self, size: int, *, is_brief: bool) -> int:
        """Write down a round in which so many contribute: its number. Rounds of fewer are forgotten."""
        for _ in range(20):
            height = self.nodes[0].machine.chain.height
            self.rise(is_brief=is_brief)
            self.until(lambda number=height: self.all_at(number + 1) and self.is_between_rounds())
            entry = self.nodes[0].disk.log[height].signed.entry
            if len(entry.contributions) == size:
                return height
            self.teller.forget()
        raise AssertionError(f"no round of {size}")

    def exchanging(self, size: int) -> bool:
        """All are in the exchange of a group with so many contributors."""
        return self.all_in("exchanging") and all(len(node.machine.status.group) == size for node in self.nodes)

    def warm_up(self, height: int = 4) -> None:
        """All stand at one head, with the phase times measured, and a new round begins."""
        self.until(lambda: all(n.is_up and n.machine.chain.height >= height for n in self.nodes))
        self.until(self.is_between_rounds)

    def is_between_rounds(self) -> bool:
        """All gather at one head, and nobody has offered anything."""
        is_free = all(node.offered is None for node in self.nodes)
        return is_free and self.all_in("gathering") and len({node.machine.chain.head for node in self.nodes}) == 1

    def rest(self, *without: Node) -> list[Node]:
        """All but these."""
        return [node for node in self.nodes if node not in without]

    def rise(self, *, is_brief: bool = True, only: str = "") -> None:
        """From now on it is written down; `is_brief`: streams and reductions are only counted.

        `only`: the peers whose machines are shown; all if empty."""
        self.teller.spotlight = frozenset(only) or frozenset("ABCDEFGH")
        self.teller.is_brief = is_brief
        self.teller.show(self.now, self.nodes)

    def tell(self, text: str) -> None:
        self.teller.tell(self.now, text)

    def crash(self, node: Node) -> None:
        self.tell(f"the process of {node.name} is killed")
        node.crash()

    def start(self, node: Node) -> None:
        self.tell(f"{node.name} is started{' again' if node.epoch else ', with an empty disk'}")
        node.start()

    def lose(self, what: str, is_lost: Callable[[PeerId, RoundMessage], bool]) -> None:
        """Messages that do not arrive from now on, in words and as (source, message)."""
        self.tell(f"lost from now on: {what}")
        self.swarm.is_dropped = is_lost

    def lose_nothing(self) -> None:
        self.tell("nothing is lost any more")
        self.swarm.is_dropped = lambda source, message: False

    def cut(self, left: Sequence[Node], right: Sequence[Node], *, is_cut: bool) -> None:
        """No byte goes between the two sides; or all go again."""
        sides = " | ".join(", ".join(node.name for node in side) for side in (left, right))
        self.tell(f"the network {'is cut' if is_cut else 'is whole again'}: {sides}")
        _cut(self.swarm, list(left), list(right), is_cut=is_cut)

    def end(self) -> None:
        """The curtain falls; the swarm lives on for a while and must keep all invariants."""
        self.teller.close()
        assert (problem := _result(self.swarm)) == "", problem
        self.swarm.close()

    # --- what has happened

    def all_in(self, state: str) -> bool:
        return all(node.is_up and node.machine.status.state == state for node in self.nodes)

    def all_at(self, height: int, nodes: Sequence[Node] = ()) -> bool:
        """These (or all) have applied the entry below this height."""
        return all(node.machine.chain.height >= height for node in nodes or self.nodes)

    def coordinator(self) -> Node:
        """Who proposed what is being exchanged or voted on."""
        found = [node.machine.status.coordinator for node in self.nodes if node.is_up]
        return self.swarm.nodes[next(peer for peer in found if peer is not None)]

    def said(self, kind: type[Any], by: Node | None = None) -> list[Any]:
        """Messages of this kind that were sent since the curtain rose."""
        return [said for one in self.handled if by in (None, one.node) for said in messages(one, kind)]

    def did(self, kind: type, by: Node | None = None) -> list[Any]:
        """Orders of this kind, of either machine."""
        return [o for one in self.handled if by in (None, one.node) for o in one.commands if isinstance(o, kind)]

    def met(self, kind: type, by: Node | None = None) -> list[Any]:
        """Events of this kind."""
        return [one.event for one in self.handled if by in (None, one.node) and isinstance(one.event, kind)]

    def failures(self) -> list[str]:
        """Why attempts failed."""
        return [failed.reason for failed in self.did(c.AttemptFailed)]

    def reported(self, rule: str) -> list[PeerId]:
        """Whom somebody reported for this rule."""
        return [report.peer for report in self.did(c.ReportPeer) if report.rule == rule]


__all__ = ["Stage"]
