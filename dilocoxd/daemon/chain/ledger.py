"""The site's copy of the shared state machine: log on disk, state in the buffers, and the view that decisions use.

Moves entries into the log and then into the state, in that order, and brings the state back at start: newest usable
snapshot, then the log. Every step compares the state's digest with the one that the next entry was voted for.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from dilocoxd.config.manifest import Manifest
from dilocoxd.daemon.chain.contributors import ContributorRoll
from dilocoxd.daemon.chain.pauses import Pauses
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.chain.reading_plan import ReadingPlan
from dilocoxd.daemon.chain.snapshots import replayable_height
from dilocoxd.daemon.chain.wrong_snapshots import is_wrong, set_aside
from dilocoxd.daemon.site.interface import TrainingSite
from dilocoxd.errors import StoreError, WorkerError
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView, view_of
from dilocoxd.machines.phase.inputs import CommittedEntry
from dilocoxd.machines.round.outputs import Settlement
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.wire.entry import Entry, SignedEntry
from dilocoxd.wire.local.outer_worker import StateReady


def planned_by(ready: StateReady) -> tuple[int, int]:
    """What the schedule of a state wants the next entry to announce."""
    return ready.next_lowrank_r, ready.next_inner_steps


def _announcement_problem(entry: Entry, before: StateReady) -> str:
    announced = (entry.lowrank_r, entry.next_lowrank_r, entry.next_inner_steps)
    if announced == (before.lowrank_r, before.next_lowrank_r, before.next_inner_steps):
        return ""
    return f"entry {entry.round} announces another low rank or H than the schedule of its state"


@dataclass(frozen=True, slots=True)
class FinishedDownload:
    """A snapshot of others, whole in `directory`; `publish` moves it to its place among our own."""

    directory: str
    publish: Callable[[], Awaitable[Path]]


class Ledger:
    """Log and state of this site. One caller at a time changes it (round driver or recovery, never both)."""

    def __init__(
        self,
        site: TrainingSite,
        log: EntryLog,
        genesis: ChainView,
        me: PeerId,
        applied: Callable[[int], None] = lambda height: None,
        reading: ReadingPlan | None = None,
    ) -> None:
        self._site = site
        self.log = log
        self._genesis = genesis
        self._applied = applied
        self.reading = reading or ReadingPlan(None, me)
        self._me = me
        self.chain = genesis
        """View of the applied state."""
        self.state: StateReady | None = None
        """Digests of the applied state; None before `open`."""
        self.own_rounds: list[int] = []
        """Rounds of the chain whose entries name us, ascending."""
        self.roll = ContributorRoll(log)
        self.payloads = PayloadMaps({})
        self.pauses = Pauses(site)

    async def open(self, payloads: PayloadMaps, snapshots: list[Path], *, may_fetch: bool = False) -> list[str]:
        """State k = height of the log, from the first usable of `snapshots` (newest first) or genesis, and the log.

        `may_fetch`: where no more than wrong snapshots keep us from it, the log is cut to what leads to a state, for
        others to give the rest again. Returns one sentence per snapshot that was not usable. Raises StoreError when not
        even genesis leads there.
        """
        self.payloads = payloads
        problems = await self._cut_bare_entries(snapshots)
        wrong: list[Path] = []
        for directory in snapshots:
            try:
                await self.rebuild(str(directory))
                break
            except (WorkerError, StoreError) as error:
                problems.append(f"snapshot {directory} is not used: {error}")
                if may_fetch and await asyncio.to_thread(is_wrong, directory, self.log):
                    wrong.append(directory)
        else:
            problems += await self._begin_at_genesis(may_cut=bool(wrong) and wrong == snapshots)
        await asyncio.to_thread(set_aside, wrong, self.log.height)
        return problems

    async def _begin_at_genesis(self, *, may_cut: bool) -> list[str]:
        problems = await self._cut_bare_entries([]) if may_cut else []
        try:
            await self.rebuild("")
        except (WorkerError, StoreError) as error:
            raise StoreError(f"the log cannot be replayed: {error}") from error
        return problems

    async def _cut_bare_entries(self, snapshots: list[Path]) -> list[str]:
        """Who died while a snapshot was to skip entries has some that nothing can be replayed from."""
        first_bare = await asyncio.to_thread(replayable_height, self.log, snapshots)
        if first_bare == self.log.height:
            return []
        await asyncio.to_thread(self.log.roll_back, first_bare)
        return [
            f"the log was cut at {first_bare}: payloads and a snapshot to replay it are missing; it is fetched again"
        ]

    async def adopt(
        self,
        download: FinishedDownload,
        certified_by: Entry,
        skipped: list[SignedEntry],
        settle: Settlement | None = None,
        *,
        forgets_feedback: bool = False,
    ) -> None:
        """Take over a downloaded snapshot instead of replaying `skipped`; `certified_by` was voted for on its state.

        `settle`: our contribution that one of `skipped` names. Raises StoreError or WorkerError when it is not that
        state; the log is unchanged then, our state is gone.
        """
        ready = await self._site.load_state(download.directory, forgets=forgets_feedback)
        if (ready.round, ready.state_digest) != (certified_by.round, certified_by.state_digest):
            raise StoreError(
                f"snapshot {download.directory} is not the state that entry {certified_by.round} was voted on"
            )
        directory = str(await download.publish())
        height = self.log.height
        try:
            for signed in skipped:
                await asyncio.to_thread(self.log.append_bare, signed, self.payloads.at(signed.entry.lowrank_r).lengths)
            # Only now: with a false snapshot, or an entry that is not in the log, it would be lost.
            if settle is not None:
                ready = await self._site.load_state(directory, settles=settle.phase, is_included=True)
        except (StoreError, WorkerError):
            await asyncio.to_thread(self.log.roll_back, height)
            raise
        self.state = ready
        await self._set_chain(ready)

    async def rebuild(self, directory: str, *, forgets_feedback: bool = False) -> None:
        """Load a snapshot (empty: genesis) and replay the log above it. Raises WorkerError, StoreError."""
        ready = await self._site.load_state(directory, forgets=forgets_feedback)
        if ready.round > self.log.height:
            raise StoreError(
                f"snapshot of state {ready.round} is ahead of the log, which has {self.log.height} entries"
            )
        for index in range(ready.round, self.log.height):
            entry = (await asyncio.to_thread(self.log.entry, index)).entry
            ready = await self._apply_logged(entry, ready, None)
        self.state = ready
        await self._set_chain(ready)

    async def _set_chain(self, ready: StateReady) -> None:
        entries = await asyncio.to_thread(lambda: [signed.entry for signed in self.log.entries()])
        digest = Digest(ready.state_digest)
        view = view_of(replace(self._genesis, state_digest=digest), entries, digest)
        self.chain = replace(view, planned=planned_by(ready))
        self.reading.restart(entries)
        self.own_rounds = [int(entry.round) for entry in entries if self._names_us(entry)]
        self.roll.restart(entries)

    def _names_us(self, entry: Entry) -> bool:
        return any(contribution.peer == self._me for contribution in entry.contributions)

    def pause(self, reason: str) -> None:
        """Several states will follow each other: the trainers shall not take each of them."""
        self.pauses.hold("recovery", reason)

    def resume(self) -> None:
        """The trainers take the state that we have now, unless there was no pause, or somebody else wants one."""
        self.pauses.release("recovery")

    def view_at(self, height: int) -> ChainView:
        """View of our chain as it was at this height (its state digest is that of no interest to checks)."""
        return view_of(self._genesis, [signed.entry for signed in self.log.entries(0, height)], Digest(bytes(32)))

    async def persist(self, signed: SignedEntry, result_fd: int, voted: Path | None = None) -> None:
        """Append entry, offers, votes and the payload in RESULT, durably. Raises StoreError.

        `voted`: a file that has the payload already, because we voted for it (PromiseFile.holding)."""
        lengths = self.payloads.at(signed.entry.lowrank_r).lengths
        if voted is not None and await asyncio.to_thread(self.log.append_voted, signed, lengths, voted):
            return
        await asyncio.to_thread(self.log.append, signed, PayloadSource(result_fd, 0, lengths))

    async def apply_voted(self, round_index: RoundIndex, settle: Settlement | None) -> StateReady:
        """Apply the entry of this round, whose payload is in RESULT and which is in the log."""
        assert self.state is not None and self.state.round == round_index, "entries are applied in order"
        entry = (await asyncio.to_thread(self.log.entry, round_index)).entry
        self.reading.extend(entry)
        ready = await self._site.apply_entry(self._committed(entry, settle))
        return self._advance(entry, ready)

    async def apply_logged(self, round_index: RoundIndex, settle: Settlement | None) -> StateReady:
        """Apply the entry of this round from the log. Raises StoreError when it was voted for on other bits."""
        assert self.state is not None and self.state.round == round_index, "entries are applied in order"
        entry = (await asyncio.to_thread(self.log.entry, round_index)).entry
        self.reading.extend(entry)
        ready = await self._apply_logged(entry, self.state, settle)
        return self._advance(entry, ready)

    def announcement_problem(self, entry: Entry) -> str:
        """Why our state's schedule does not let this entry be the next one; empty if it does."""
        assert self.state is not None, "no state is applied"
        return _announcement_problem(entry, self.state)

    async def _apply_logged(self, entry: Entry, before: StateReady, settle: Settlement | None) -> StateReady:
        if before.state_digest != entry.state_digest:
            raise StoreError(
                f"entry {entry.round} was voted for on a state {entry.state_digest.hex()[:16]}, ours is"
                f" {before.state_digest.hex()[:16]}"
            )
        if problem := _announcement_problem(entry, before):
            raise StoreError(problem)
        payload = await asyncio.to_thread(self.log.payload, entry.round)
        committed = replace(self._committed(entry, settle), path=payload.path, offset=payload.offset)
        return await self._site.apply_entry(committed)

    def _committed(self, entry: Entry, settle: Settlement | None) -> CommittedEntry:
        num_present = len(entry.contributions)
        return CommittedEntry(
            round=RoundIndex(entry.round),
            lowrank_r=entry.lowrank_r,
            next_inner_steps=entry.next_inner_steps,
            next_lowrank_r=entry.next_lowrank_r,
            settles=settle.phase if settle is not None else None,
            is_included=settle is not None,
            owned=settle.owned if settle is not None else (),
            place=entry.place_of(self._me),
            num_contributors=num_present + self.chain.missing(len(entry.counted)),
        )

    def _advance(self, entry: Entry, ready: StateReady) -> StateReady:
        self.state = ready
        self.chain = self.chain.extended(entry, Digest(ready.state_digest), planned_by(ready))
        if self._names_us(entry):
            self.own_rounds.append(int(entry.round))
        self._applied(self.chain.height)
        self.roll.extend(entry)
        return ready

    async def own_phases(self) -> frozenset[PhaseId]:
        """All phases of ours in the chain."""
        return await asyncio.to_thread(
            lambda: frozenset(
                c.phase for index in self.own_rounds for c in self.log.entry(index).entry.contributions
                if c.peer == self._me
            )
        )  # fmt: skip


def genesis_view(
    run_id: RunId, genesis: Digest, *, inner_steps: int, lowrank_r: int, participation_rounds: int = 0
) -> ChainView:
    """View of a chain without entries; its state digest is set when the state is loaded."""
    return ChainView(
        run_id=run_id,
        height=RoundIndex(0),
        head=genesis,
        state_digest=Digest(bytes(32)),
        last_phases=MappingProxyType({}),
        lowrank_r=lowrank_r,
        inner_steps=inner_steps,
        participation_rounds=participation_rounds,
    )


def first_view(manifest: Manifest, genesis: Digest) -> ChainView:
    """View of the empty chain of a run."""
    strategy, admission = manifest.strategy, manifest.admission
    view = genesis_view(
        manifest.run_id,
        genesis,
        inner_steps=strategy.inner_steps,
        lowrank_r=strategy.lowrank_r,
        participation_rounds=strategy.participation_rounds,
    )
    if admission.mode != "open" or not admission.probation_rounds:
        return view
    served = {PeerId(peer): admission.probation_rounds for peer in admission.founders}
    return replace(view, probation_rounds=admission.probation_rounds, served=MappingProxyType(served))
