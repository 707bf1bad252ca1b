"""Drives the round machine: one event at a time in, its commands carried out in order (rounds/events.py has the rules).

All I/O of a round starts here: promises and entries to disk, messages and segments to peers, orders to the site.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, assert_never

from dilocoxd.daemon.ledger import Ledger, planned_by
from dilocoxd.daemon.own_books import OwnBooks
from dilocoxd.daemon.promises import PromiseFile
from dilocoxd.daemon.recorder import Recorder
from dilocoxd.daemon.round_history import RoundHistory
from dilocoxd.daemon.site_interface import BadResult, BadShare, ContributionOffered, Site
from dilocoxd.daemon.transfers import Transfers, key_of
from dilocoxd.errors import StoreError, WorkerError
from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.ipc.fault import hold
from dilocoxd.rounds.commands import (
    ApplyEntry,
    AttemptFailed,
    Broadcast,
    CancelTransfers,
    Command,
    LeaveFinished,
    OrderPass,
    OrderReduce,
    PersistEntry,
    PersistPromise,
    Promise,
    ReportPeer,
    RoundFinished,
    Send,
    SendSegment,
    SettleContribution,
    StartRecovery,
)
from dilocoxd.rounds.events import (
    DeadlineReached,
    EntryApplied,
    EntryPersisted,
    Event,
    MessageReceived,
    PassPrepared,
    PeersChanged,
    PhaseOffered,
    RecoveryFailed,
    RecoveryFinished,
    Reduced,
    ReduceFailed,
    Started,
    StoreFailed,
)
from dilocoxd.swarm.pieces import Region
from dilocoxd.wire.entry import Contribution, payload_root
from dilocoxd.wire.local import INBOX, RESULT, Share
from dilocoxd.wire.messages import SegmentHeader

PEER_EVENTS_MAX: Final = 1024
"""Messages of peers that wait to be handled; beyond it their streams wait (back-pressure), nothing is dropped."""


class Post(Protocol):
    """Outgoing messages (swarm.channel.MessageChannel)."""

    def send(self, peer: PeerId, message: Any) -> None:
        """Queue one message; returns at once."""


@dataclass(frozen=True, slots=True)
class RoundParts:
    """What the driver works with."""

    recorder: Recorder
    """Holds the machine; every event goes through it."""
    site: Site
    ledger: Ledger
    promises: PromiseFile
    books: OwnBooks
    post: Post
    history: RoundHistory
    count_bad: Callable[[str, str, str], None]
    """(peer, rule, detail)"""
    moved: Callable[[], None]
    """Told when the chain head has changed, so that the others hear of it."""


class RoundDriver:
    """The loop around the machine."""

    def __init__(self, parts: RoundParts, me: PeerId, recover: Callable[[StartRecovery], None]) -> None:
        self._parts = parts
        self._machine = parts.recorder.machine
        self._me = me
        self._recover = recover
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._peer_room = asyncio.Semaphore(PEER_EVENTS_MAX)
        self._settle: SettleContribution | None = None
        self._was_deadline = False
        self._is_recovering = False
        self._held_offer: PhaseOffered | None = None
        """Formed while recovery was settling the one before it; the machine hears of that first."""
        self._others: tuple[Monotonic | None, tuple[float, ...]] = (None, ())
        """When they are due, and the times of their inner steps, as the site was told last."""
        self._live: tuple[PeerId, ...] = ()
        self._group: asyncio.TaskGroup | None = None
        self.transfers: Transfers | None = None
        self.left = asyncio.Event()
        """Set by LeaveFinished: asked for, or because promises cannot be kept any more (`left_why`)."""
        self.left_why = ""

    def tell(self, event: Event) -> None:
        """Queue a fact of our own making; as many as there are orders under way."""
        self._inbox.put_nowait(event)

    async def tell_message(self, peer: PeerId, message: Any) -> None:
        """Queue a peer's message; waits while too many wait already."""
        await self._peer_room.acquire()
        self._inbox.put_nowait(MessageReceived(peer, message))

    def offer(self, offered: ContributionOffered) -> None:
        """The site's contribution lies in OUTBOX."""
        hashes = tuple(Digest(value) for value in offered.segment_hashes)
        contribution = Contribution(
            peer=self._me,
            phase=offered.phase,
            base_round=offered.base_round,
            inner_steps=offered.inner_steps,
            tokens=offered.tokens,
            payload_root=payload_root(tuple(hashes)),
        )
        self._parts.history.formed(offered.form_seconds)
        self.tell(PhaseOffered(contribution, hashes))

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        """Where a peer's segment goes. Raises WireError."""
        assert self.transfers is not None, "streams are served only while the driver runs"
        return self.transfers.accept(peer, header, self._machine.destination(peer, key_of(header)))

    async def run(self, transfers: Transfers) -> None:
        """Until cancelled. Raises WorkerError when the site cannot apply what was committed."""
        self.transfers = transfers
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as group:
            self._group = group
            event: Event = Started()
            while True:
                if isinstance(event, PhaseOffered) and self._is_recovering:
                    self._held_offer = event
                else:
                    await self._handle(event, Monotonic(clock()), transfers)
                self._tell_of_others(Monotonic(clock()))
                event = await self._next_event()

    async def _handle(self, event: Event, now: Monotonic, transfers: Transfers) -> None:
        if isinstance(event, RecoveryFinished | RecoveryFailed):
            self._is_recovering = False
        await self._carry_out(self._parts.recorder.handle(event, now), transfers)
        if self._held_offer is not None and not self._is_recovering:
            self.tell(self._held_offer)
            self._held_offer = None

    def _tell_of_others(self, now: Monotonic) -> None:
        paces = self._machine.paces()
        own_step_s = self._parts.site.status().step_seconds if paces else 0.0
        told = (self._machine.others_due(now, own_step_s), paces)
        if told != self._others:
            self._others = told
            self._parts.site.others_due(*told)

    async def _next_event(self) -> Event:
        # A queue that is never empty must not starve the deadline: the machine is told whenever it has passed.
        deadline = self._machine.next_deadline()
        if deadline is not None and deadline <= asyncio.get_running_loop().time() and not self._was_deadline:
            self._was_deadline = True
            return DeadlineReached()
        self._was_deadline = False
        try:
            async with asyncio.timeout_at(deadline):
                event = await self._inbox.get()
        except TimeoutError:
            return DeadlineReached()
        if isinstance(event, MessageReceived):
            self._peer_room.release()
        elif isinstance(event, PeersChanged):
            self._live = tuple(view.peer for view in event.peers if view.is_live)
        return event

    async def _carry_out(self, commands: Sequence[Command], transfers: Transfers) -> None:
        for command in commands:
            try:
                await self._do(command, transfers)
            except StoreError as error:
                self.tell(StoreFailed(str(error)))
                break
        settle, self._settle = self._settle, None
        if settle is not None:
            assert not settle.is_included, "an included contribution settles with its entry"
            abandoned = self._parts.site.abandon_contribution(settle.phase, is_voted=settle.is_voted)
            self._spawn(abandoned, "abandon contribution")

    def _spawn(self, work: Any, name: str) -> None:
        assert self._group is not None
        self._group.create_task(work, name=name)

    async def _do(self, command: Command, transfers: Transfers) -> None:  # noqa: C901 - one flat match, one line each
        match command:
            case Send():
                self._parts.post.send(command.peer, command.message)
            case Broadcast():
                for peer in self._live:
                    self._parts.post.send(peer, command.message)
            case PersistPromise():
                await self._keep_promise(command.promise)
            case SendSegment():
                assert self._group is not None
                await hold("exchange", self._parts.history.held)
                transfers.start(command, self._group)
            case CancelTransfers():
                transfers.cancel(command)
            case OrderReduce():
                self._spawn(self._reduce(command), f"reduce {command.pass_index}/{command.segment}")
            case OrderPass():
                self._spawn(self._prepare_pass(command), f"pass {command.pass_index}")
            case PersistEntry():
                self._spawn(self._persist(command), "persist entry")
            case SettleContribution():
                self._settle = command
            case ApplyEntry():
                settle, self._settle = self._settle, None
                self._spawn(self._apply(command, settle), "apply entry")
            case StartRecovery():
                self._is_recovering = True
                self._recover(command)
            case ReportPeer():
                self._parts.count_bad(command.peer, command.rule, command.detail)
            case RoundFinished():
                self._parts.history.finished(command.summary, transfers.take_counts(command.summary.round))
                if not transfers.is_sending:
                    await self._give_back()
            case AttemptFailed():
                self._parts.history.attempt_failed(command)
            case LeaveFinished():
                self.left_why = command.reason
                self.left.set()
            case _:
                assert_never(command)

    async def _give_back(self) -> None:
        """The round is applied here and nothing of it is sent any more: nobody reads RESULT, or inputs that it used.

        Nothing arrives either: while this is awaited, the machine cannot take part in the next exchange.
        """
        punch, size = self._parts.site.buffers.punch, self._parts.ledger.payloads.largest.total_bytes
        await asyncio.to_thread(punch, RESULT, 0, size)
        for slot in self._machine.slots_over():
            await asyncio.to_thread(punch, INBOX, slot * size, size)

    async def _keep_promise(self, promise: Promise) -> None:
        parts, payloads = self._parts, self._parts.ledger.payloads
        if promise.entry is not None:
            await parts.books.keep(promise.entry, payloads)
        await parts.promises.save(promise, parts.site.buffers.fd(RESULT), payloads)

    async def _reduce(self, order: OrderReduce) -> None:
        shares = tuple(Share(share.slot, share.tokens, share.age, share.missing) for share in order.shares)
        where = (order.round, order.attempt)
        try:
            done = await self._parts.site.reduce(order.pass_index, order.segment, shares, order.lowrank_r)
        except BadShare as error:
            culprit = next((share.peer for share in order.shares if share.slot == error.slot), None)
            self.tell(ReduceFailed(*where, order.pass_index, order.segment, culprit, str(error)))
        except WorkerError as error:
            self.tell(ReduceFailed(*where, order.pass_index, order.segment, None, str(error)))
        else:
            self._parts.history.reduced(order.round, done.seconds)
            self.tell(Reduced(*where, order.pass_index, order.segment, Digest(done.sha256)))

    async def _prepare_pass(self, order: OrderPass) -> None:
        try:
            done = await self._parts.site.prepare_pass(order.pass_index, order.lowrank_r)
        except WorkerError as error:
            segment = error.segment if isinstance(error, BadResult) else None
            self.tell(ReduceFailed(order.round, order.attempt, order.pass_index, None, None, str(error), segment))
        else:
            hashes = tuple(Digest(value) for value in done.segment_hashes)
            self.tell(PassPrepared(order.round, order.attempt, order.pass_index, hashes))

    async def _persist(self, order: PersistEntry) -> None:
        await hold("commit", self._parts.history.held)
        try:
            await self._parts.ledger.persist(order.signed, self._parts.site.buffers.fd(RESULT))
        except StoreError as error:
            self.tell(StoreFailed(str(error)))
        else:
            await hold("persisted", self._parts.history.held)
            self.tell(EntryPersisted(order.signed.entry.round))

    async def _apply(self, order: ApplyEntry, settle: SettleContribution | None) -> None:
        parts = self._parts
        ready = await parts.ledger.apply_voted(order.round, settle)
        signed = await asyncio.to_thread(parts.ledger.log.entry, order.round)
        await parts.books.commit(signed.entry, settle)
        parts.moved()
        self.tell(EntryApplied(order.round, Digest(ready.state_digest), planned_by(ready)))
