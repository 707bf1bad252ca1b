"""Drives the recovery machine: carries out its questions and steps, tells it what came of them and when time is over.

One recovery at a time, ordered by the round machine, which neither votes nor commits meanwhile. What is decided, and
in which order, is in machines/recovery/machine.py.
"""

import asyncio
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final

from dilocoxd.daemon.chain.snapshots import replayable_height, usable_snapshots
from dilocoxd.daemon.recovery.questions import Questions
from dilocoxd.daemon.recovery.steps import OwnSteps, RecoveryParts
from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.finality import Place
from dilocoxd.machines.recovery.machine import RecoveryMachine
from dilocoxd.machines.recovery.own_chain import compared_rounds
from dilocoxd.machines.recovery.rollback import Choice, choose_at_start
from dilocoxd.machines.round.inputs import Event, RecoveryFailed, RecoveryFinished
from dilocoxd.machines.round.outputs import ExtendRecovery, StartRecovery
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import remove_downloads
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.suspicions import SourceLate
from dilocoxd.wire.entry import SignedEntry

LIMITS = r.RecoveryLimits()
LATE_NAMED_MAX: Final = 3
"""Sources that the text names; events name all."""
__all__ = ["RecoveryDriver", "RecoveryParts", "finish_turn_back"]


def finish_turn_back(
    log: EntryLog,
    aside: Aside,
    snapshots: Path,
    note: Callable[[Choice], None],
    adopted: Place | None = None,
    reverted: Set[Digest] = frozenset(),
) -> None:
    """At start: the last process died between two branches. The better one stays. Raises StoreError.

    Entries that a snapshot was to skip count only when the snapshot leads over all of them: else they are cut again.
    A branch with an entry of `reverted` is never the better one (R29). `note` hears of it before anything changes, and
    again if the process dies before the end.
    """
    own = [signed.entry for signed in aside.entries()]
    fork = own[0].round if own else 0
    below = log.hash_at(fork) if fork <= log.height else None
    num_replayable = max(0, replayable_height(log, usable_snapshots(snapshots, log)) - fork)
    taken = list(log.entries(fork)) if own else []
    choice = choose_at_start(own, below, taken, num_replayable, adopted, reverted)
    if choice is not None:
        note(choice)
    if choice is not None and choice.goes_back:
        log.roll_back(fork)
        aside.put_back(log, snapshots)
    aside.clear()


def compared_entries(log: EntryLog, before: Sequence[Digest]) -> tuple[SignedEntry, ...]:
    """Entries of `compared_rounds`; `before`: chain heads by height when the recovery began. Raises StoreError."""
    now = [log.hash_at(height) for height in range(log.height + 1)]
    return tuple(log.entry(number) for number in compared_rounds(before, now))


class RecoveryDriver:
    """Runs one ordered recovery after the other."""

    def __init__(self, parts: RecoveryParts, limits: r.RecoveryLimits = LIMITS) -> None:
        self._parts = parts
        self._limits = limits
        self._orders: asyncio.Queue[tuple[StartRecovery, Callable[[Event], None]]] = asyncio.Queue()
        self._machine: RecoveryMachine | None = None
        self._added: list[PeerId] = []
        """Who is to be asked, too, once the machine of the newest order begins."""

    @property
    def text(self) -> str:
        """What recovery is doing, for the operator; empty when none runs."""
        machine = self._machine
        if machine is None:
            return ""
        status = machine.status
        limit = f" (at most {status.patience_s:.0f} s)" if status.patience_s is not None else ""
        late = ", ".join(peer for peer, _ in status.late[:LATE_NAMED_MAX])
        return status.waiting_for + limit + (f"; late, others are asked: {late}" if late else "")

    @property
    def named_height(self) -> int:
        """Of the entry that the join link names; 0: none."""
        return self._parts.limits.checkpoint[0] if self._parts.limits.checkpoint is not None else 0

    def take(self, order: StartRecovery | ExtendRecovery, tell: Callable[[Event], None]) -> None:
        """RecoveryFinished or RecoveryFailed follows a start; whom an extension names while it runs is asked, too."""
        if isinstance(order, StartRecovery):
            self._added.clear()
            self._orders.put_nowait((order, tell))
        elif self._machine is None:
            self._added += order.peers
        else:
            self._machine.extend(order.peers)

    async def run(self) -> None:
        """Until cancelled. Raises StoreError or WorkerError (in a group) when our own disk or worker fails."""
        while True:
            order, tell = await self._orders.get()
            try:
                tell(await self._recover(order))
            finally:
                self._machine = None
                self._parts.ledger.resume()

    async def _recover(self, order: StartRecovery) -> Event:
        parts = self._parts
        started, bytes_before = asyncio.get_running_loop().time(), parts.client.counts["bytes_received"]
        parts.events.emit(
            catalogue.RecoveryStarted(own_height=parts.log.height, target_height=order.height, reason=order.reason)
        )
        before = [parts.log.hash_at(height) for height in range(parts.log.height + 1)]
        done = await self._run_machine(order)
        if done.failure:
            return RecoveryFailed(done.failure, done.unconfirmed, done.unavailable, done.settled, done.overdue)
        await asyncio.to_thread(remove_downloads, parts.snapshots, parts.log.height)
        seconds = asyncio.get_running_loop().time() - started
        num_bytes = parts.client.counts["bytes_received"] - bytes_before
        parts.events.emit(
            catalogue.RecoveryEnded(height=parts.log.height, recovery_s=seconds, bytes_received=num_bytes)
        )
        parts.moved()
        parts.adoption.settle()
        newest = await asyncio.to_thread(compared_entries, parts.log, before)
        return RecoveryFinished(
            chain=parts.ledger.chain,
            settled_phase=done.settled,
            unavailable=done.unavailable,
            unasked=done.unasked,
            in_part=done.in_part,
            newest=newest,
            added=done.added,
            overdue=done.overdue,
        )

    def _make_machine(self, order: StartRecovery) -> RecoveryMachine:
        log, ledger = self._parts.log, self._parts.ledger
        heads = [log.hash_at(height) for height in range(log.height + 1)]
        digest = Digest(ledger.state.state_digest) if ledger.state is not None else None
        sizes, adopted = (lambda rank: ledger.payloads.at(rank).total_bytes), self._parts.adoption.place
        machine = RecoveryMachine(order, heads, digest, self._limits, sizes, adopted)
        machine.extend(self._added)
        return machine

    async def _run_machine(self, order: StartRecovery) -> r.Done:
        parts = self._parts
        machine = self._machine = self._make_machine(order)
        async with asyncio.TaskGroup() as group:
            questions = Questions(group, parts.client, parts.ledger, parts.snapshots)
            steps, told = OwnSteps(parts, questions), set[PeerId]()
            try:
                effects = machine.start(now=_now())
                while True:
                    for effect in effects:
                        if isinstance(effect, r.Done):
                            return effect
                        await self._carry_out(effect, questions, steps)
                    effects = machine.handle(await _next_event(machine, questions), now=_now())
                    self._tell_late(machine, told)
            finally:
                questions.close()

    def _tell_late(self, machine: RecoveryMachine, told: set[PeerId]) -> None:
        """Name each source once that gives nothing, or too late."""
        for peer, reason in machine.status.late:
            if peer not in told:
                told.add(peer)
                self._parts.events.emit(SourceLate(peer=peer, reason=reason))

    async def _carry_out(self, effect: r.Effect, questions: Questions, steps: OwnSteps) -> None:
        parts = self._parts
        match effect:
            case r.AskEntries() | r.AskSnapshots() | r.AskOffer() | r.AskChunk() | r.AskPayload():
                questions.ask(effect)
            case r.Cancel():
                questions.cancel(effect.request)
            case r.PauseTrainers():
                parts.ledger.pause(effect.reason)
            case r.CloseDownload():
                questions.close_download()
            case r.ForgetOwn():
                await asyncio.to_thread(parts.aside.clear)
            case r.FinalKept():
                parts.adoption.kept(effect)
            case r.SourceDropped() | r.Done():
                pass  # the fetcher has counted and named the source when it saw the wrong bytes
            case _:
                questions.answers.put_nowait(await steps.carry_out(effect))


def _now() -> Monotonic:
    return Monotonic(asyncio.get_running_loop().time())


async def _next_event(machine: RecoveryMachine, questions: Questions) -> r.RecoveryEvent:
    """What comes next; a Tick at the machine's deadline."""
    try:
        async with asyncio.timeout_at(machine.next_deadline()):
            return await questions.answers.get()
    except TimeoutError:
        return r.Tick()
