"""Keeps the work that this site votes into an entry, and tells the site when an entry leaves or enters the chain.

Owed work has five rooms: who keeps it is here, the files are in store/kept_work.py, what is owed is derived in
machines/phase/owed_work.py, when it is made good is decided in machines/phase/repayment.py, outerworker/owed_work.py
does it. Decides nothing about chains: recovery tells which entries leave and which come (R-b of protocol/06-rounds.md).
"""

import asyncio
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from dilocoxd.daemon.chain.early_writes import EarlyWrites
from dilocoxd.daemon.chain.ledger import Ledger
from dilocoxd.daemon.chain.payload_map import PayloadMap, PayloadMaps, Place
from dilocoxd.daemon.site.interface import TrainingSite
from dilocoxd.daemon.site.saved_feedback import forget_saved
from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest, PeerId, PhaseId
from dilocoxd.machines.phase.settings import CountedIn, StartingPoint
from dilocoxd.machines.recovery.branch import Branch
from dilocoxd.machines.recovery.rollback import Choice, dropped_phases, forgotten_phases
from dilocoxd.machines.round.outputs import InFlight, Settlement
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, Piece
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.events import EventLog
from dilocoxd.telemetry.suspicions import EntryTakenBack
from dilocoxd.wire.entry import Entry, entry_hash
from dilocoxd.wire.local.buffers import MEMORY, OUTBOX, RESULT

_UNREADABLE: Final = (
    "what is kept of it is damaged, or of another version of dilocoxd; unless an entry names it, its work is lost"
)


@dataclass(frozen=True, slots=True)
class WorkKeeper:
    """Keeps our contributions, and tells the site which of them the chain has."""

    me: PeerId
    site: TrainingSite
    kept: KeptWorkStore
    feedback: Path
    """The file of saved error feedback."""
    events: EventLog
    early: EarlyWrites = field(default_factory=EarlyWrites)

    async def keep(self, entry: Entry, maps: PayloadMaps) -> None:
        """Before a vote for `entry`: keep what OUTBOX and RESULT say that we gave. Raises StoreError."""
        phase = next((c.phase for c in entry.contributions if c.peer == self.me), None)
        if phase is None or self.site.status().in_flight != phase:
            return  # a vote repeated after a restart: the first one kept it
        payloads = maps.at(entry.lowrank_r)
        last = payloads.num_passes - 1
        result, num_segments = self.site.buffers.fd(RESULT), len(payloads.segment_bytes)
        spans = [payloads.span(index) for index in range(last)]
        body = [self._own_piece(payloads, segment) for segment in range(num_segments)]
        body += [Piece(result, *span) for span in spans]
        body += self._says_what_was_counted(payloads, maps)
        digest = entry_hash(entry)
        known = self.kept.find(phase)
        if known is None or known.entry_hash != digest:
            content = tuple(sorted(self.site.status().in_flight_content.items()))
            place = entry.place_of(self.me)
            work = KeptWork(phase, int(entry.round), digest, payloads.num_passes, content=content, place=place)
            self.early.call_off()
            await asyncio.to_thread(self.kept.keep, work, body)

    async def keep_early(self, payloads: PayloadMap, segment: int) -> None:
        """A segment of OUTBOX, of the last pass, is what this attempt gives: a vote will want it on disk, and so it is
        written while the exchange runs."""
        piece = self._own_piece(payloads, segment)
        at = piece.offset - payloads.span(payloads.num_passes - 1)[0]
        num_items, place = len(self.site.status().in_flight_content), Place(OUTBOX, piece.offset, piece.length)
        await self.early.write(place, partial(self.kept.keep_early, piece, at, num_items))

    def _own_piece(self, payloads: PayloadMap, segment: int) -> Piece:
        place = payloads.own(OUTBOX, payloads.num_passes - 1, segment)
        return Piece(self.site.buffers.fd(OUTBOX), place.offset, place.length)

    def _says_what_was_counted(self, payloads: PayloadMap, maps: PayloadMaps) -> list[Piece]:
        """The records of the last pass's results and, where shares were compared with it, the result before."""
        if not maps.record_bytes:
            return []
        last, size, buffers = payloads.num_passes - 1, maps.record_bytes, self.site.buffers
        places = [payloads.own(RESULT, last, segment) for segment in range(len(payloads.segment_bytes))]
        pieces = [Piece(buffers.fd(RESULT), place.offset + place.length - size, size) for place in places]
        if maps.center_start:
            pieces.append(Piece(buffers.fd(MEMORY), maps.center_start, buffers.size(MEMORY) - maps.center_start))
        return pieces

    async def starting_point(self, ledger: Ledger) -> StartingPoint:
        """What chain and disk say of our work once we have caught up. Raises StoreError."""
        await asyncio.to_thread(self.kept.clear_unfinished)
        phases, contents = await asyncio.to_thread(lambda: (self.kept.phases(), self.kept.contents()))
        unreadable, chain = frozenset(phases) - contents.keys(), await ledger.own_phases()
        for phase in sorted(unreadable - chain):
            self.events.emit(catalogue.ContributionRefused(phase=phase, reason=_UNREADABLE))
        return StartingPoint(chain, contents, await asyncio.to_thread(self._newest, ledger), unreadable)

    def _newest(self, ledger: Ledger) -> CountedIn | None:
        """How much of our newest contribution was counted: the work that was given to this very entry says it to the
        bit, and so do its results, unless shares were compared with the result before; any other attempt may differ."""
        if not ledger.own_rounds:
            return None
        log, number = ledger.log, ledger.own_rounds[-1]
        entry = log.entry(number).entry
        phase = next(c.phase for c in entry.contributions if c.peer == self.me)
        work = self.kept.find_whole(phase)  # damaged, it would restore nothing where the results restore all
        if work is not None and work.entry_hash == entry_hash(entry):
            return CountedIn(phase, is_kept=True)
        if not ledger.payloads.center_start:
            with suppress(StoreError):  # dropped, long ago or this moment
                results = log.payload(number)
                return CountedIn(phase, False, results.path, results.offset, entry.lowrank_r, entry.place_of(self.me))
        return CountedIn(phase, is_kept=work is not None and work.num_passes == 1)

    async def leave_chain(
        self,
        own: list[Entry],
        branch: Branch,
        in_flight: InFlight | None,
        reverted: Set[Digest] = frozenset(),
    ) -> None:
        """Before our entries `own` are rolled back for `branch`: what we gave to them is owed again, but not from the
        first one on that was `reverted` (R29): that is forgotten, and so is what is in flight, and the saved feedback.
        """
        flying = in_flight.contribution.phase if in_flight is not None else None
        if reverted:  # before anything of it is left: who dies now, or has not begun to train yet, would load it
            await asyncio.to_thread(forget_saved, self.feedback)
            flying = self.site.status().in_flight if flying is None else flying  # formed since recovery began
        if reverted and flying is not None:
            await self.site.abandon_contribution(flying, is_voted=False)
            await asyncio.to_thread(self.kept.forget, flying)
        for phase in forgotten_phases(self.me, own, reverted):
            await asyncio.to_thread(self.kept.forget, phase)
        dropped = [phase for phase in dropped_phases(self.me, own, branch, reverted) if phase != flying]
        for phase in dropped:
            entry = next(e for e in own if any(c.peer == self.me and c.phase == phase for c in e.contributions))
            why = _unusable(self.kept, phase, entry)
            if why:
                await asyncio.to_thread(self.kept.forget, phase)
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

    async def commit(self, entry: Entry, settle: Settlement | None) -> None:
        """An entry that was committed here has been applied. What it settles was in flight. Who died with its vote
        finishes an entry whose contribution is in flight no more, and may be owed by now."""
        if settle is None:
            await self.enter_chain([entry], None)

    async def _move(self, phase: PhaseId, round_index: int, *, is_withdrawn: bool) -> None:
        is_news = await self.site.move_work(phase, is_withdrawn=is_withdrawn)
        if is_news and (not is_withdrawn or self.kept.find(phase) is not None):
            self.events.emit(catalogue.ContributionReturned(phase=phase, round=round_index, is_withdrawn=is_withdrawn))


def tell_choice(me: PeerId, kept: KeptWorkStore, events: EventLog, choice: Choice) -> None:
    """At a start after a crash between two branches: say which goes on, and what we gave to the other alone.

    That is owed because the chain does not have it (machines/phase/owed_work.py). Raises StoreError.
    """
    if choice.goes_back:
        events.emit(fork_left(choice.fork, choice.own, choice.left))
    for phase, entry in choice.dropped(me):
        why = _unusable(kept, phase, entry)
        if why:
            kept.forget(phase)
            events.emit(catalogue.ContributionRefused(phase=phase, reason=why))
        else:
            events.emit(catalogue.ContributionReturned(phase=phase, round=int(entry.round), is_withdrawn=False))


def fork_left(fork: int, own: Sequence[Entry], left: Sequence[Entry]) -> catalogue.ForkResolved:
    """The better branch was false, or not to be had: our own, which was said to be dropped for it, goes on."""
    dropped = entry_hash(left[-1]).hex()[:16] if left else ""
    kept = entry_hash(own[-1]).hex()[:16]
    return catalogue.ForkResolved(fork_height=fork, kept=kept, dropped=dropped, is_rolled_back=bool(left))


def taken_back(own: Sequence[Entry], reverted: Set[Digest]) -> list[EntryTakenBack]:
    """Our chain leaves `own`, for some of these entries spoiled the model or have a false result."""
    found: list[EntryTakenBack] = []
    for entry in own:
        digest = entry_hash(entry)
        name = digest.hex()[:16]
        if digest in reverted:
            sites = tuple(contribution.peer for contribution in entry.contributions)
            found.append(EntryTakenBack(round=int(entry.round), entry=name, sites=sites, followers=()))
        elif found:
            found[-1] = replace(found[-1], followers=(*found[-1].followers, name))
    return found


def _unusable(kept: KeptWorkStore, phase: PhaseId, entry: Entry) -> str:
    found = kept.find(phase)
    if found is None:
        return f"a fork dropped entry {entry.round}, and what we gave to it is not kept (any more)"
    if found.num_passes > 1 and found.entry_hash != entry_hash(entry):
        return f"a fork dropped entry {entry.round}; what is kept of this phase was given to another exchange"
    return ""
