"""The simulated recovery driver: asks peers for their chain, believes what rounds/recovery.py allows, applies by steps.

Like the real driver: payloads are fetched one by one while the source may fail, a crash between two steps leaves a
valid chain, and a branch that turns out to be false is left again for our own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import Digest, PhaseId, RoundIndex, RunId
from dilocoxd.rounds import commands as c, events as e
from dilocoxd.rounds.chain import ChainView, view_of
from dilocoxd.rounds.recovery import Branch, check_branch, dropped_phases, is_better, settlement
from tests.simulation.disk import GENESIS, GENESIS_DIGEST, RUN_ID, Disk, Payload, Stored, hashes

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
        self.has_answer = False
        self.fork = 0
        self.own: list[Stored] = []
        """What we gave up for the branch that is being taken."""
        self.digest = node.machine.chain.state_digest

    def ask_next(self) -> None:
        """One source after the other; each answer takes a round trip."""
        if not self.sources and not self.has_answer:
            self._finish(e.RecoveryFailed("nobody answers"))
            return
        if not self.sources:
            self._finish(e.RecoveryFinished(self.node.disk.chain(self.node.sums), self.settled))
            return
        source = self.swarm.nodes.get(self.sources.pop(0))
        self.node.later(self.swarm.world.rng.uniform(0.1, 0.6), lambda: self._take_from(source))

    def _take_from(self, source: Node | None) -> None:
        if source is None or not self._is_reachable(source):
            self.ask_next()
            return
        self.has_answer = True
        disk = self.node.disk
        theirs = _log_of(source)
        fork = shared(disk.log, theirs)
        branch = Branch(fork, tuple(stored.signed for stored in theirs[fork:]))
        own = disk.log[fork:]
        try:
            check_branch(branch, _view_at(disk, fork), self.swarm.limits, self.node.site.keys)
        except WireError:
            self.ask_next()
            return
        if not is_better(branch, [stored.signed.entry for stored in own]):
            self.ask_next()
            return
        self.fork, self.own = fork, own
        if own:
            self._leave_own(branch)
        self._append(source, [stored.signed.entry.round for stored in theirs[fork:]], theirs)

    def _leave_own(self, branch: Branch) -> None:
        entries = [stored.signed.entry for stored in self.own]
        in_flight = self.order.in_flight.contribution.phase if self.order.in_flight is not None else None
        for phase in dropped_phases(self.node.name, entries, branch):
            if phase != in_flight or phase == self.settled:
                self.swarm.ledger.reclaimed(self.node.name, phase)
        self.swarm.world.log(f"{self.node.name} rolls back {len(entries)} entries")
        self.swarm.ledger.rolls_back(self.node.name, entries, [signed.entry for signed in branch.entries])
        self.node.disk.set_aside(self.fork)
        self.digest = Digest(entries[0].state_digest)

    def _append(self, source: Node, left: list[RoundIndex], theirs: list[Stored]) -> None:
        if not left:
            self._complete()
            self.ask_next()
            return
        signed = theirs[left[0]].signed
        try:
            payload = self._fetch(source, theirs[left[0]])
            if signed.entry.state_digest != self.digest:
                raise WireError("bad_digest", "voted for on another state")
            digest = self.node.sums.applied(self.digest, payload)
        except (WireError, ValueError) as error:
            self._turn_back(str(error))
            return
        if self._store(Stored(signed, payload)):
            self.digest = digest
            self._settle(signed.entry.round)
            self.node.later(STEP_S, lambda: self._append(source, left[1:], theirs))

    def _fetch(self, source: Node, stored: Stored) -> Payload:
        """Payload from the source or from anybody else who has this entry."""
        index = stored.signed.entry.round
        others = [self.swarm.nodes[peer] for peer in self.order.peers if peer in self.swarm.nodes]
        for donor in [source, *others]:
            log = _log_of(donor) if self._is_reachable(donor) else []
            if donor is source and self._is_reachable(donor):
                log = [*log[:index], stored]
            if len(log) > index and hashes(log[index].payload) == stored.signed.entry.result_hashes:
                return log[index].payload
        raise WireError("unavailable", f"payload of entry {index}")

    def _store(self, stored: Stored) -> bool:
        try:
            self.node.disk.append(stored)
        except StoreError as error:
            self._finish(e.StoreFailed(str(error)))
            return False
        self.swarm.ledger.committed(self.node.name, stored.signed.entry)
        self.swarm.ledger.taken(self.node.name, stored.signed.entry)
        return True

    def _settle(self, index: RoundIndex) -> None:
        settle = settlement(self.node.disk.log[index].signed.entry, self.order.in_flight)
        if settle is not None:
            self.settled = settle.phase
            self.swarm.ledger.settled(self.node.name, settle.phase, is_included=True)
            self.node.offered = None

    def _turn_back(self, reason: str) -> None:
        """The branch cannot be had: ours again, unless what we have of the other one is better anyway."""
        node, ledger = self.node, self.swarm.ledger
        taken = node.disk.log[self.fork :]
        own, self.own = self.own, []
        self.swarm.world.log(f"{node.name} gives up the branch: {reason}")
        part = Branch(self.fork, tuple(stored.signed for stored in taken))
        entries = [stored.signed.entry for stored in own]
        if own and not is_better(part, entries):
            ledger.returns(node.name, entries, [stored.signed.entry for stored in taken])
            node.disk.roll_back(self.fork)
            node.disk.put_back()
            self.digest = node.disk.chain(node.sums).state_digest
        elif own:
            for phase in dropped_phases(node.name, entries, part):
                ledger.reclaimed(node.name, phase)
        self._complete()
        self.ask_next()

    def _complete(self) -> None:
        self.own = []
        self.node.disk.clear_aside()
        self.swarm.ledger.recovered(self.node.name, [stored.signed.entry for stored in self.node.disk.log])

    def _finish(self, event: e.Event) -> None:
        self.node.is_recovering = False
        self.node.feed(event)

    def _is_reachable(self, source: Node) -> bool:
        world, me = self.swarm.world, self.node.name
        is_cut = world.link(source.name, me).is_cut or world.link(me, source.name).is_cut
        return source.is_up and not source.is_paused and not is_cut


def _log_of(source: Node) -> list[Stored]:
    """What this peer serves."""
    return source.disk.log if source.mischief is None else source.mischief.log(source)


def shared(mine: list[Stored], theirs: list[Stored]) -> int:
    """Length of the common beginning of two logs."""
    count = 0
    for a, b in zip(mine, theirs, strict=False):
        if a.signed.entry != b.signed.entry:
            break
        count += 1
    return count


def _view_at(disk: Disk, height: int) -> ChainView:
    genesis = ChainView(RunId(RUN_ID), RoundIndex(0), GENESIS, GENESIS_DIGEST)
    view = view_of(genesis, [stored.signed.entry for stored in disk.log[:height]], Digest(bytes(32)))
    return replace(view, run_id=RUN_ID)
