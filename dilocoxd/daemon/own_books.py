"""Keeps the work that this site votes into an entry, and puts it back into the feedback when a fork drops the entry.

Decides nothing about chains: recovery tells which entries leave and which come (rule R-b of protocol/06-rounds.md).
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from dilocoxd.daemon.payload_map import PayloadMaps
from dilocoxd.daemon.site_interface import Site
from dilocoxd.ids import PeerId, PhaseId
from dilocoxd.rounds.commands import InFlight
from dilocoxd.rounds.recovery import Branch, dropped_phases
from dilocoxd.store.own_work import KeptWork, OwnWork, Piece
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.entry import Entry, entry_hash
from dilocoxd.wire.local import OUTBOX, RESULT


@dataclass(frozen=True, slots=True)
class OwnBooks:
    """What becomes of (me, phase)."""

    me: PeerId
    site: Site
    kept: OwnWork
    events: EventLog

    async def keep(self, entry: Entry, maps: PayloadMaps) -> None:
        """Before a vote for `entry`: keep what OUTBOX and RESULT say that we gave. Raises StoreError."""
        phase = next((c.phase for c in entry.contributions if c.peer == self.me), None)
        if phase is None or self.site.status().in_flight != phase:
            return  # a vote repeated after a restart: the first one kept it
        payloads = maps.at(entry.lowrank_r)
        last = payloads.num_passes - 1
        outbox, result = self.site.buffers.fd(OUTBOX), self.site.buffers.fd(RESULT)
        spans = [payloads.span(index) for index in range(payloads.num_passes)]
        body = [Piece(outbox, *spans[last]), *(Piece(result, *span) for span in spans[:last])]
        digest = entry_hash(entry)
        known = self.kept.find(phase)
        if known is None or known.entry_hash != digest:
            work = KeptWork(phase, int(entry.round), digest, payloads.num_passes)
            await asyncio.to_thread(self.kept.keep, work, body)

    async def leave_chain(self, own: list[Entry], branch: Branch, in_flight: InFlight | None) -> None:
        """Before our entries `own` are rolled back for `branch`: what we gave to them is owed again."""
        flying = in_flight.contribution.phase if in_flight is not None else None
        dropped = [phase for phase in dropped_phases(self.me, own, branch) if phase != flying]
        for phase in dropped:
            entry = next(e for e in own if any(c.peer == self.me and c.phase == phase for c in e.contributions))
            why = self._unusable(phase, entry)
            if why:
                self.events.emit(catalogue.ContributionRefused(phase=phase, reason=why))
            else:
                await self._move(phase, int(entry.round), is_withdrawn=False)

    def _unusable(self, phase: PhaseId, entry: Entry) -> str:
        kept = self.kept.find(phase)
        if kept is None:
            return f"a fork dropped entry {entry.round}, and what we gave to it is not kept (any more)"
        if kept.num_passes > 1 and kept.entry_hash != entry_hash(entry):
            return f"a fork dropped entry {entry.round}; what is kept of this phase was given to another exchange"
        return ""

    async def enter_chain(self, entries: Iterable[Entry], in_flight: InFlight | None) -> None:
        """Entries of another's chain become ours: what they name of us is owed no more."""
        flying = in_flight.contribution.phase if in_flight is not None else None
        for entry in entries:
            for contribution in entry.contributions:
                if contribution.peer == self.me and contribution.phase != flying:
                    await self._move(contribution.phase, int(entry.round), is_withdrawn=True)

    async def _move(self, phase: PhaseId, round_index: int, *, is_withdrawn: bool) -> None:
        is_news = await self.site.move_work(phase, is_withdrawn=is_withdrawn)
        if is_news:
            self.events.emit(catalogue.ContributionReturned(phase=phase, round=round_index, is_withdrawn=is_withdrawn))
