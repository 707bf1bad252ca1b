"""Carries out the recovery machine's steps on our own log, state and kept work, one at a time.

Entries are durable in the log before they are applied (L5); what cannot be applied does not stay.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from dilocoxd.daemon.chain.ledger import FinishedDownload, Ledger
from dilocoxd.daemon.chain.owed_work import WorkKeeper, fork_left, taken_back
from dilocoxd.daemon.chain.snapshots import replayable_height, usable_snapshots
from dilocoxd.daemon.chain.wrong_snapshots import remove_others
from dilocoxd.daemon.recovery.adoption import Adoption
from dilocoxd.daemon.recovery.questions import Questions
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import StoreError, WireError, WorkerError
from dilocoxd.ids import Digest, RoundIndex
from dilocoxd.machines.limits import RoundLimits, VoteKeys
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch, check_branch
from dilocoxd.machines.recovery.finality import num_final
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.store.snapshots import verify
from dilocoxd.swarm.streams.fetch import FetchClient
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.entry import Entry, SignedEntry, entry_hash


@dataclass(frozen=True, slots=True)
class RecoveryParts:
    """What the driver works with."""

    work_keeper: WorkKeeper
    ledger: Ledger
    client: FetchClient
    keys: VoteKeys
    limits: RoundLimits
    snapshots: Path
    events: EventLog
    moved: Callable[[], None]
    """Told when the chain head has changed."""
    took: Callable[[SignedEntry], None]
    """Told each entry that was applied here without our taking part."""
    aside: Aside
    """Our own branch, until the better one is taken."""
    adoption: Adoption

    @property
    def log(self) -> EntryLog:
        return self.ledger.log


FORGED: Final = frozenset({"bad_signature", "bad_offer", "bad_evidence"})
"""Codes of a branch that nobody honest can have: another chain, or another view of who may vote, is no lie."""

CORRUPT: Final = "corrupt_snapshot"
"""Kind of the outer worker's refusal of a snapshot that is not what its index says."""


def _is_made_up(directory: Path, error: StoreError | WorkerError) -> bool:
    """Whether the loading of this download failed although its files are what the index describes. Blocks.

    Else our own disk or worker has failed, and nobody is to blame.
    """
    if isinstance(error, WorkerError) and not (isinstance(error, RequestRefused) and error.kind == CORRUPT):
        return False
    try:
        verify(directory)
    except StoreError:
        return False
    return True


class OwnSteps:
    """Steps of one recovery. All raise StoreError or WorkerError when our own disk or worker fails."""

    def __init__(self, parts: RecoveryParts, questions: Questions) -> None:
        self._parts = parts
        self._questions = questions
        self._forgets_feedback = False
        """An entry that was taken back has been left."""
        self._has_no_state = False
        """Our log was cut where no state can be made: a snapshot or the way back follows."""

    async def carry_out(self, step: r.Step) -> r.StepDone:
        """Its answer."""
        match step:
            case r.Rebuild(has_way_back):
                return await self._rebuilt(has_way_back=has_way_back)
            case r.ReadOwn():
                return await asyncio.to_thread(self._read_own, step.fork)
            case r.CheckBranch():
                return r.BranchChecked(await self._check(step))
            case r.RestorePayload():
                with self._questions.payload(step.request) as fd:
                    await asyncio.to_thread(self._restore, step.signed.entry, fd)
                return r.PayloadRestored()
            case r.LeaveOwn():
                await self._leave_own(step)
                return r.OwnLeft()
            case r.OpenDownload():
                return r.DownloadOpened(await self._questions.open_download(step.offer).open())
            case r.FinishDownload():
                assert self._questions.download is not None
                await self._questions.download.finish()
                return r.DownloadFinished()
            case _:
                return await self._change(step)

    async def _change(self, step: r.AdoptSnapshot | r.TakeEntry | r.TurnBack) -> r.StepDone:
        match step:
            case r.AdoptSnapshot():
                return await self._adopt(step)
            case r.TakeEntry():
                return await self._take(step)
            case r.TurnBack():
                return r.TurnedBack(await self._turn_back(step))

    def _read_own(self, fork: int) -> r.OwnRead:
        """Blocks."""
        parts = self._parts
        own, base = list(parts.log.entries(fork)), parts.ledger.view_at(fork)
        final = num_final(own, base, parts.limits, parts.adoption.place)
        missing = list(islice(self._missing(fork), r.MISSING_MAX + 1)) if own else []
        few = missing if len(missing) <= r.MISSING_MAX else []
        lacking = tuple(parts.log.entry(index) for index in few)
        return r.OwnRead(tuple(s.entry for s in own), not missing, base, final, lacking)

    def _missing(self, height: int) -> Iterator[int]:
        """Entries whose payloads our disk lacks on the way to this state, from a snapshot at or below it, or genesis.
        Blocks."""
        log = self._parts.log
        rounds = [int(path.name) for path in usable_snapshots(self._parts.snapshots, log)]
        start = next((number for number in rounds if number <= height), 0)
        return (index for index in range(start, height) if not log.has_payload(index))

    def _can_replay(self, height: int) -> bool:
        """Whether our disk leads to this state. Blocks."""
        return next(self._missing(height), None) is None

    def _restore(self, entry: Entry, fd: int) -> None:
        """Blocks."""
        lengths = self._parts.ledger.payloads.at(entry.lowrank_r).lengths
        self._parts.log.restore_payload(entry.round, PayloadSource(fd, 0, lengths))

    async def _check(self, step: r.CheckBranch) -> str:
        """What is wrong with the branch. Who served it checked it as well, so what is forged is held against it."""
        error = await asyncio.to_thread(self._problem_of, step)
        if error is not None and error.code in FORGED:
            self._questions.blame(error)
        return str(error or "")

    def _problem_of(self, step: r.CheckBranch) -> WireError | None:
        """Blocks."""
        limits, adoption = self._parts.limits, self._parts.adoption
        if step.is_adopted or adoption.is_below(step.base.height):
            limits = replace(limits, checkpoint=None)
        try:
            check_branch(step.branch, step.base, limits, self._parts.keys)
        except WireError as error:
            return error
        return None

    async def _rebuilt(self, *, has_way_back: bool) -> r.Rebuilt | r.RebuildRefused:
        try:
            digest = await self._rebuild()
        except (StoreError, RequestRefused) as error:
            if not has_way_back:
                raise
            self._has_no_state = True
            return r.RebuildRefused(str(error))
        self._tell_rebuilt()
        return r.Rebuilt(digest)

    async def _rebuild(self) -> Digest:
        """The state of our log from the newest usable snapshot, else from genesis.

        For a snapshot of the newest state no entry vouches: it may be of the very bits that are to be replaced. So it
        is the last resort, and goes if the others lead to another state.
        """
        parts, log = self._parts, self._parts.log
        usable = await asyncio.to_thread(usable_snapshots, parts.snapshots, log)
        newest = [path for path in usable if int(path.name) == log.height]
        others = [str(path) for path in usable if path not in newest]
        has_all = await asyncio.to_thread(replayable_height, log, []) == log.height
        ways = [*others, "", *map(str, newest)] if has_all else [*others, *map(str, newest), ""]
        for way in ways:
            try:
                await parts.ledger.rebuild(way, forgets_feedback=self._forgets_feedback)
            except (StoreError, WorkerError):
                if way == ways[-1]:
                    raise
            else:
                break
        digest = parts.ledger.chain.state_digest
        await asyncio.to_thread(remove_others, newest, digest)
        return digest

    def _tell_rebuilt(self) -> None:
        """Which segments were wrong, for who asks whether memory or a disk is failing."""
        state = self._parts.ledger.state
        assert state is not None, "it was rebuilt"
        self._parts.events.emit(
            catalogue.StateRebuilt(
                round=int(state.round), segments=tuple(state.differing), num_segments=state.num_differing
            )
        )

    async def _leave_own(self, step: r.LeaveOwn) -> None:
        """First our kept work, then the log."""
        parts, fork = self._parts, step.branch.fork
        self._forgets_feedback = self._forgets_feedback or bool(step.reverted)
        await parts.work_keeper.leave_chain(list(step.own), step.branch, step.in_flight, step.reverted)
        for event in taken_back(step.own, step.reverted):
            parts.events.emit(event)
        usable = await asyncio.to_thread(usable_snapshots, parts.snapshots, parts.log)
        above = [path for path in usable if int(path.name) > fork]
        if step.branch.entries:
            parts.events.emit(
                catalogue.ForkResolved(
                    fork_height=fork,
                    kept=entry_hash(step.branch.entries[-1].entry).hex()[:16],
                    dropped=entry_hash(step.own[-1]).hex()[:16],
                    is_rolled_back=True,
                )
            )
            await asyncio.to_thread(parts.aside.leave, parts.log, fork, above)
        else:
            await asyncio.to_thread(self._cut, fork, above)

    def _cut(self, fork: int, above: list[Path]) -> None:
        """An older snapshot leads to the state that is ours from now on. Blocks."""
        with self._parts.aside.changing:
            for path in above:
                shutil.rmtree(path, ignore_errors=True)
            self._parts.log.roll_back(fork)

    async def _adopt(self, step: r.AdoptSnapshot) -> r.StepDone:
        """A download takes its place only once it has proved right: a snapshot of our own may lie there."""
        parts, download = self._parts, self._questions.download
        assert download is not None
        source = FinishedDownload(str(download.partial), download.publish)
        try:
            forgets = self._forgets_feedback
            await parts.ledger.adopt(
                source, step.certified_by, list(step.skipped), step.settle, forgets_feedback=forgets
            )
        except (StoreError, WorkerError) as error:
            is_false = await asyncio.to_thread(_is_made_up, download.partial, error)
            await asyncio.to_thread(shutil.rmtree, download.partial, ignore_errors=True)
            if not self._has_no_state and await asyncio.to_thread(self._can_replay, parts.log.height):
                await self._rebuild()
            reason = f"snapshot {step.offer.round}: {error}"
            if is_false:
                self._questions.blame_offer(step.offer, WireError("bad_hash", reason))
            return r.AdoptRefused(reason, is_false)
        self._has_no_state = False
        await parts.work_keeper.enter_chain((signed.entry for signed in step.skipped), step.in_flight)
        for signed in step.skipped:
            parts.took(signed)
        return r.Adopted()

    async def _take(self, step: r.TakeEntry) -> r.StepDone:
        """Log, state, kept work. What cannot be applied is not left in the log."""
        parts, entry = self._parts, step.signed.entry
        if problem := parts.ledger.announcement_problem(entry):
            # It is the donor's fault, not our disk's: in our log it would end this daemon, now and at every start.
            return r.EntryRefused(problem)
        lengths = parts.ledger.payloads.at(entry.lowrank_r).lengths
        with self._questions.payload(step.request) as fd:
            await asyncio.to_thread(parts.log.append, step.signed, PayloadSource(fd, 0, lengths))
        try:
            ready = await parts.ledger.apply_logged(RoundIndex(entry.round), step.settle)
        except RequestRefused as refused:
            if refused.kind != "bad_payload":
                raise
            await asyncio.to_thread(parts.log.roll_back, entry.round)
            return r.EntryRefused(f"bad_payload: entry {entry.round}: {refused.detail}")
        parts.took(step.signed)
        await parts.work_keeper.enter_chain([entry], step.in_flight)
        return r.EntryTaken(Digest(ready.state_digest))

    async def _turn_back(self, step: r.TurnBack) -> Digest:
        parts = self._parts
        taken, flying = Branch(step.fork, step.taken), step.in_flight
        if step.is_kept:
            await parts.work_keeper.leave_chain(list(step.own), taken, flying)
        else:
            await parts.work_keeper.leave_chain([signed.entry for signed in step.taken], Branch(step.fork, ()), flying)
            parts.events.emit(fork_left(step.fork, step.own, [signed.entry for signed in step.taken]))
            await asyncio.to_thread(parts.log.roll_back, step.fork)
            await asyncio.to_thread(parts.aside.put_back, parts.log, parts.snapshots)
            await parts.work_keeper.enter_chain(step.own, flying)
        digest, self._has_no_state = await self._rebuild(), False
        await asyncio.to_thread(parts.aside.clear)
        return digest
