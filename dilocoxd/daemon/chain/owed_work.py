"""Keeps the work that this site votes into an entry, and puts it back into the feedback when a fork drops the entry.

Decides nothing about chains: recovery tells which entries leave and which come (rule R-b of protocol/06-rounds.md).
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dilocoxd.daemon.payload_map import PayloadMaps
from dilocoxd.daemon.site_interface import Site
from dilocoxd.daemon.site_record import load_record, save_record
from dilocoxd.ids import PeerId, PhaseId
from dilocoxd.rounds.commands import InFlight, SettleContribution
from dilocoxd.rounds.recovery import Branch, Choice, dropped_phases
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
            why = _unusable(self.kept, phase, entry)
            if why:
                self.events.emit(catalogue.ContributionRefused(phase=phase, reason=why))
            else:
                await self._move(phase, int(entry.round), is_withdrawn=False)

    async def enter_chain(self, entries: Iterable[Entry], in_flight: InFlight | None) -> None:
        """Entries of another's chain become ours: what they name of us is owed no more."""
        flying = in_flight.contribution.phase if in_flight is not None else None
        for entry in entries:
            for contribution in entry.contributions:
                if contribution.peer == self.me and contribution.phase != flying:
                    await self._move(contribution.phase, int(entry.round), is_withdrawn=True)

    async def commit(self, entry: Entry, settle: SettleContribution | None) -> None:
        """An entry that was committed here has been applied. What it settles was in flight. Who died with its vote
        finishes an entry whose contribution is in flight no more, and may be owed by now."""
        if settle is None or not settle.is_included:
            await self.enter_chain([entry], None)

    async def _move(self, phase: PhaseId, round_index: int, *, is_withdrawn: bool) -> None:
        is_news = await self.site.move_work(phase, is_withdrawn=is_withdrawn)
        if is_news:
            self.events.emit(catalogue.ContributionReturned(phase=phase, round=round_index, is_withdrawn=is_withdrawn))


@dataclass(frozen=True, slots=True)
class StartBooks:
    """The same for a start after a crash between two branches, when there is no site yet to tell."""

    me: PeerId
    run_directory: Path
    kept: OwnWork
    events: EventLog

    def note(self, choice: Choice) -> None:
        """Say which branch goes on; what we gave to the other alone is owed, durably. Raises StoreError."""
        if choice.goes_back:
            self.events.emit(fork_left(choice.fork, choice.own, choice.left))
        record = load_record(self.run_directory)
        owed = dict(record.returned)
        for phase, entry in choice.dropped(self.me):
            if phase in owed:
                continue
            why = _unusable(self.kept, phase, entry)
            if why:
                self.events.emit(catalogue.ContributionRefused(phase=phase, reason=why))
                continue
            # It may have been in the error feedback before the other branch brought it back; ours had it until now.
            newest = phase if choice.goes_back else max(phase, record.last_settled or phase)
            owed[phase] = PhaseId(newest + 1)
            self.events.emit(catalogue.ContributionReturned(phase=phase, round=int(entry.round), is_withdrawn=False))
        if owed != dict(record.returned):
            save_record(self.run_directory, replace(record, returned=tuple(sorted(owed.items()))))


def fork_left(fork: int, own: Sequence[Entry], left: Sequence[Entry]) -> catalogue.ForkResolved:
    """The better branch was false, or not to be had: our own, which was said to be dropped for it, goes on."""
    dropped = entry_hash(left[-1]).hex()[:16] if left else ""
    kept = entry_hash(own[-1]).hex()[:16]
    return catalogue.ForkResolved(fork_height=fork, kept=kept, dropped=dropped, is_rolled_back=bool(left))


def _unusable(kept: OwnWork, phase: PhaseId, entry: Entry) -> str:
    found = kept.find(phase)
    if found is None:
        return f"a fork dropped entry {entry.round}, and what we gave to it is not kept (any more)"
    if found.num_passes > 1 and found.entry_hash != entry_hash(entry):
        return f"a fork dropped entry {entry.round}; what is kept of this phase was given to another exchange"
    return ""
