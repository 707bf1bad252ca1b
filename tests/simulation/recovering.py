"""The simulated recovery driver: asks peers for their chain, believes what rounds/recovery.py allows, applies by steps.

A crash between two steps leaves a valid chain on the disk, like in the real driver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, PeerId, PhaseId, RunId
from dilocoxd.rounds import commands as c, events as e
from dilocoxd.rounds.chain import ChainView, view_of
from dilocoxd.rounds.recovery import Branch, check_branch, dropped_phases, is_better, settlement
from tests.simulation.disk import GENESIS, GENESIS_DIGEST, RUN_ID, Disk, Stored, hashes

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.swarm import Swarm

STEP_S = 0.05


class Recovery:
    """One ordered recovery of one node."""

    def __init__(self, swarm: Swarm, node: Node, order: c.StartRecovery) -> None:
        self.swarm = swarm
        self.node = node
        self.order = order
        self.sources = list(order.peers)
        self.settled: PhaseId | None = None

    def ask_next(self) -> None:
        """One source after the other, until one gives something better; each answer takes a round trip."""
        if not self.sources:
            self._finish(e.RecoveryFinished(self.node.disk.chain(), self.settled))
            return
        source = self.swarm.nodes.get(self.sources.pop(0))
        self.node.later(self.swarm.world.rng.uniform(0.1, 0.6), lambda: self._take_from(source))

    def _take_from(self, source: Node | None) -> None:
        if source is None or not source.is_up or source.is_paused or self._is_cut(source.name):
            self.ask_next()
            return
        disk = self.node.disk
        theirs = source.disk.log if source.mischief is None else source.mischief.log(source.disk.log)
        fork = shared(disk.log, theirs)
        branch = Branch(fork, tuple(stored.signed for stored in theirs[fork:]))
        own = [stored.signed.entry for stored in disk.log[fork:]]
        try:
            check_branch(branch, _view_at(disk, fork), self.swarm.limits, self.node.site.keys)
            if any(hashes(stored.payload) != stored.signed.entry.result_hashes for stored in theirs[fork:]):
                raise WireError("bad_hash", "payload")
        except WireError:
            self.ask_next()
            return
        if not is_better(branch, own):
            self.ask_next()
            return
        flying = self.order.in_flight.contribution.phase if self.order.in_flight is not None else None
        for phase in dropped_phases(self.node.name, own, branch):
            if phase != flying:
                self.swarm.ledger.reclaimed(self.node.name, phase)
        if own:
            self.swarm.world.log(f"{self.node.name} rolls back {len(own)} entries")
            disk.log = disk.log[:fork]
        self._append(list(theirs[fork:]))

    def _append(self, left: list[Stored]) -> None:
        if not left:
            self.ask_next()
            return
        stored = left[0]
        entry = stored.signed.entry
        if entry.state_digest != self.node.disk.chain().state_digest:
            raise AssertionError(f"R-a: entry {entry.round} was voted for on other bits than replay gives")
        self.node.disk.log.append(stored)
        self.swarm.ledger.committed(self.node.name, entry)
        self.swarm.ledger.taken(self.node.name, entry)
        settle = settlement(entry, self.order.in_flight)
        if settle is not None:
            self.settled = settle.phase
            self.swarm.ledger.settled(self.node.name, settle.phase, is_included=True)
            self.node.offered = None
        self.node.later(STEP_S, lambda: self._append(left[1:]))

    def _finish(self, event: e.Event) -> None:
        self.node.is_recovering = False
        self.node.feed(event)

    def _is_cut(self, peer: PeerId) -> bool:
        world = self.swarm.world
        return world.link(peer, self.node.name).is_cut or world.link(self.node.name, peer).is_cut


def shared(mine: list[Stored], theirs: list[Stored]) -> int:
    """Length of the common beginning of two logs."""
    count = 0
    for a, b in zip(mine, theirs, strict=False):
        if a.signed.entry != b.signed.entry:
            break
        count += 1
    return count


def _view_at(disk: Disk, height: int) -> ChainView:
    genesis = ChainView(RunId(RUN_ID), 0, GENESIS, GENESIS_DIGEST)  # type: ignore[arg-type]
    view = view_of(genesis, [stored.signed.entry for stored in disk.log[:height]], Digest(bytes(32)))
    return replace(view, run_id=RUN_ID)
