"""Drives the round machine: one event at a time in, its commands carried out in order.

The order rules are in machines/round/inputs.py.

All I/O of a round starts here: promises and entries to disk, messages and segments to peers, orders to the site.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, assert_never

from dilocoxd.daemon.audit.auditor import Auditor
from dilocoxd.daemon.audit.inputs import AuditedEntry
from dilocoxd.daemon.chain.ledger import Ledger, planned_by
from dilocoxd.daemon.chain.owed_work import WorkKeeper
from dilocoxd.daemon.chain.payload_map import Place
from dilocoxd.daemon.chain.promise_file import PromiseFile
from dilocoxd.daemon.chain.voted_payload import EARLY_BYTES_MIN
from dilocoxd.daemon.observe.rounds import RoundHistory
from dilocoxd.daemon.round.as_read import as_read
from dilocoxd.daemon.round.inbox import RoundInbox
from dilocoxd.daemon.round.offers import OfferCheck
from dilocoxd.daemon.round.recorder import Recorder
from dilocoxd.daemon.round.roles import Roles
from dilocoxd.daemon.round.suspects import Suspects
from dilocoxd.daemon.round.transfers import BAD_ROOT, Transfers, key_of
from dilocoxd.daemon.site.interface import BadResult, BadShare, TrainingSite
from dilocoxd.errors import StoreError, WireError, WorkerError
from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.ipc.fault import hold
from dilocoxd.machines.exchange.facts import PassPrepared, Reduced, ReduceFailed, SegmentReceived, SegmentSent
from dilocoxd.machines.exchange.orders import CancelTransfers, OrderPass, OrderReduce, SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT
from dilocoxd.machines.phase.outputs import OfferContribution
from dilocoxd.machines.round.inputs import (
    Audited,
    EntryApplied,
    EntryPersisted,
    Event,
    LeaveRequested,
    PeersChanged,
    PhaseOffered,
    RecoveryFailed,
    RecoveryFinished,
    Started,
    StoreFailed,
)
from dilocoxd.machines.round.outputs import (
    AbandonContribution,
    ApplyEntry,
    AttemptFailed,
    Broadcast,
    Command,
    DoubleVoteFound,
    ExtendRecovery,
    LeaveFinished,
    OrderAudit,
    PersistEntry,
    PersistPromise,
    PersistReverts,
    Promise,
    ReportPeer,
    RoundFinished,
    Send,
    StartRecovery,
)
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.entry import Contribution, Signature, entry_hash, payload_root
from dilocoxd.wire.local.buffers import INBOX, RESULT
from dilocoxd.wire.messages import SegmentHeader


class Post(Protocol):
    """Outgoing messages (swarm.channel.MessageChannel)."""

    def send(self, peer: PeerId, message: Any) -> None:
        """Queue one message; returns at once."""


@dataclass(frozen=True, slots=True)
class RoundParts:
    """What the driver works with."""

    recorder: Recorder
    """Holds the machine; every event goes through it."""
    site: TrainingSite
    ledger: Ledger
    promises: PromiseFile
    work_keeper: WorkKeeper
    post: Post
    history: RoundHistory
    suspects: Suspects
    count_bad: Callable[[str, str, str], None]
    """(peer, rule, detail)"""
    sign_offer: Callable[[Contribution], Signature]
    roles: Roles
    offers: OfferCheck
    auditor: Auditor | None
    """None: nobody checks reductions in this run."""
    moved: Callable[[], None]
    """Told when the chain head has changed, so that the others hear of it."""


class RoundDriver:
    """The loop around the machine."""

    def __init__(
        self, parts: RoundParts, me: PeerId, recover: Callable[[StartRecovery | ExtendRecovery], None]
    ) -> None:
        self._parts = parts
        self._machine = parts.recorder.machine
        self._me = me
        self._recover = recover
        self._inbox = RoundInbox(self._machine.next_deadline)
        self._is_recovering = False
        self._held_offer: PhaseOffered | None = None
        """Formed while recovery was settling the one before it; the machine hears of that first."""
        self._others: tuple[Monotonic | None, tuple[float, ...]] = (None, ())
        """When they are due, and the times of their inner steps, as the site was told last."""
        self._live: tuple[PeerId, ...] = ()
        self._group: asyncio.TaskGroup | None = None
        self.transfers: Transfers | None = None
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self.left = asyncio.Event()
        """Set by LeaveFinished: asked for, or because promises cannot be kept any more (`left_why`)."""
        self.left_why = ""

    def tell(self, event: Event) -> None:
        """Queue a fact of our own making; as many as there are orders under way."""
        if self._goes_on.is_set() or not isinstance(event, PeersChanged | LeaveRequested):
            self._inbox.tell(event)
        elif isinstance(event, LeaveRequested):
            self.left.set()  # what it has promised is on disk, as after a crash

    def broadcast(self, message: Any) -> None:
        """To all live peers."""
        for peer in self._live:
            self._parts.post.send(peer, message)

    def count_bad(self, peer: PeerId, rule: str, detail: str) -> None:
        """What a peer did against the rules."""
        self._parts.count_bad(peer, rule, detail)

    def halt(self, is_out: bool) -> None:
        """Nobody takes what we would commit: the machine stands still, which harms no rule, until somebody does."""
        (self._goes_on.clear if is_out else self._goes_on.set)()

    async def tell_message(self, peer: PeerId, message: Any) -> None:
        """Queue a peer's message; waits while too many wait already. What names work that nobody offered is counted."""
        message = self._parts.roles.heard(peer, message)
        if problem := self._parts.offers.problem(message):
            self._parts.count_bad(peer, "bad_offer", problem)
            return
        await self._inbox.tell_message(peer, message)

    def offer(self, offered: OfferContribution) -> None:
        """The site's contribution lies in OUTBOX."""
        hashes = tuple(Digest(value) for value in offered.formed.segment_hashes)
        contribution = Contribution(
            peer=self._me,
            phase=offered.phase,
            base_round=offered.base_round,
            inner_steps=offered.inner_steps,
            tokens=offered.tokens,
            payload_root=payload_root(hashes),
        )
        self._parts.history.formed(offered.formed.seconds)
        self.tell(PhaseOffered(contribution, hashes, self._parts.sign_offer(contribution)))

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        """Where a peer's segment goes, here. Raises AlreadyHeld, WireError."""
        place = self.arrival(peer, header)
        assert self.transfers is not None, "its place is known"
        return self.transfers.take_here(place)

    def arrival(self, peer: PeerId, header: SegmentHeader) -> Place:
        """The same, whoever receives it."""
        assert self.transfers is not None, "streams are served only while the driver runs"
        try:
            return self.transfers.arrival(header, self._machine.destination(peer, key_of(header)))
        except WireError as error:
            if error.code == BAD_ROOT and header.kind == KIND_CONTRIBUTION:
                self._parts.count_bad(peer, BAD_ROOT, error.detail)
            raise

    async def run(self, transfers: Transfers) -> None:
        """Until cancelled. Raises WorkerError when the site cannot apply what was committed."""
        self.transfers = transfers
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as group:
            self._group = group
            if self._parts.auditor is not None:
                self._parts.auditor.disproofs.outside = self
                self._spawn(self._parts.auditor.run(), "audits")
            event: Event = Started(await self._parts.promises.load_reverts())
            now = Monotonic(clock())
            while True:
                if isinstance(event, PhaseOffered) and self._is_recovering:
                    self._held_offer = event
                else:
                    await self._handle(event, now, transfers)
                self._tell_of_others(Monotonic(clock()))
                event, now = await self._inbox.next()
                await self._goes_on.wait()

    async def _handle(self, event: Event, now: Monotonic, transfers: Transfers) -> None:
        if isinstance(event, RecoveryFinished | RecoveryFailed):
            self._is_recovering = False
        elif isinstance(event, PeersChanged):
            self._live = tuple(view.peer for view in event.peers if view.is_live)
        offer = self._machine.height.own.offer
        flying = offer.contribution if offer is not None else None
        parts = self._parts
        in_flight = parts.site.status().in_flight if isinstance(event, PhaseOffered) else None
        event = as_read(event, parts.ledger.reading, flying, parts.sign_offer, in_flight)
        commands = parts.recorder.handle(event, now)
        status, height = self._machine.status, self._machine.height
        transfers.look_again((status.state, status.round, status.attempt, height.attempt.exchange is None))
        self._write_early(event)
        await self._carry_out(commands, transfers)
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

    async def _carry_out(self, commands: Sequence[Command], transfers: Transfers) -> None:
        for command in commands:
            try:
                await self._do(command, transfers)
            except StoreError as error:
                self.tell(StoreFailed(str(error)))
                break

    def _spawn(self, work: Any, name: str) -> None:
        assert self._group is not None
        self._group.create_task(work, name=name)

    async def _do(self, command: Command, transfers: Transfers) -> None:  # noqa: C901 - one flat match, one line each
        match command:
            case Send():
                self._parts.post.send(command.peer, command.message)
            case Broadcast():
                self.broadcast(command.message)
            case PersistPromise():
                await self._keep_promise(command.promise)
            case PersistReverts():
                await self._parts.promises.save_reverts(command.taken_back)
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
            case OrderAudit():
                await self._parts.work_keeper.keep(command.entry, self._parts.ledger.payloads)
                self._spawn(self._audit(command), f"audit of round {command.round}")
            case PersistEntry():
                self._spawn(self._persist(command), "persist entry")
            case AbandonContribution():
                abandoned = self._parts.site.abandon_contribution(command.phase, is_voted=command.is_voted)
                self._spawn(abandoned, "abandon contribution")
            case ApplyEntry():
                self._spawn(self._apply(command), "apply entry")
            case StartRecovery():
                self._is_recovering = True
                self._recover(command)
            case ExtendRecovery():
                self._recover(command)
            case ReportPeer():
                self._parts.count_bad(command.peer, command.rule, command.detail)
            case DoubleVoteFound():
                self._parts.suspects.voted_twice(command.evidence, self._me)
            case RoundFinished():
                self._parts.history.finished(command.summary, transfers.take_counts(command.summary.round))
                self._parts.suspects.finished(command.summary.round)
                if self._parts.auditor is not None:
                    self._parts.auditor.later(command.summary)
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

    def _write_early(self, event: Event) -> None:
        """A result is here, or what we gave is with its owner: a vote wants both on disk, and they go there now, while
        the exchange runs."""
        exchange = self._machine.height.attempt.exchange
        if exchange is None or not exchange.is_contributor:
            return
        match event:
            case SegmentReceived(key=key) if key.kind == KIND_RESULT:
                is_result, is_given = True, False
            case SegmentSent(key=key):
                is_result, is_given = False, key.kind == KIND_CONTRIBUTION
            case Reduced() as key:
                is_result = is_given = True
            case _:
                return
        parts, payload = self._parts, self._parts.ledger.payloads.at(exchange.propose.lowrank_r)
        if payload.total_bytes < EARLY_BYTES_MIN:
            return
        if is_result:
            place = payload.own(RESULT, key.pass_index, key.segment)
            early = parts.promises.write_early(parts.site.buffers.fd(RESULT), place)
            self._spawn(early, f"result {key.pass_index}/{key.segment} to disk")
        if is_given and key.pass_index == payload.num_passes - 1:
            self._spawn(parts.work_keeper.keep_early(payload, key.segment), f"given {key.segment} to disk")

    async def _keep_promise(self, promise: Promise) -> None:
        parts, payloads = self._parts, self._parts.ledger.payloads
        keeping = parts.work_keeper.keep(promise.entry, payloads) if promise.entry is not None else None
        await parts.promises.save(promise, parts.site.buffers.fd(RESULT), payloads, keeping)

    async def _reduce(self, order: OrderReduce) -> None:
        where = (order.round, order.attempt)
        try:
            done = await self._parts.site.reduce(order.pass_index, order.segment, order.shares, order.lowrank_r)
        except BadShare as error:
            shares = zip(order.peers, order.shares, strict=True)
            culprit = next((peer for peer, share in shares if share.slot == error.slot), None)
            self.tell(ReduceFailed(*where, order.pass_index, order.segment, culprit, str(error)))
        except WorkerError as error:
            self.tell(ReduceFailed(*where, order.pass_index, order.segment, None, str(error)))
        else:
            self._parts.history.reduced(order.round, done.seconds)
            self._parts.suspects.reduced(where, order.peers, done.sketches)
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

    async def _audit(self, order: OrderAudit) -> None:
        assert self._parts.auditor is not None, "audits are ordered only in runs that make them"
        audited = AuditedEntry(order.entry, order.offers, order.owners)
        self.tell(Audited(order.round, order.attempt, *await self._parts.auditor.before_vote(audited)))

    async def _persist(self, order: PersistEntry) -> None:
        await hold("commit", self._parts.history.held)
        try:
            voted = self._parts.promises.holding(entry_hash(order.signed.entry))
            await self._parts.ledger.persist(order.signed, self._parts.site.buffers.fd(RESULT), voted)
        except StoreError as error:
            self.tell(StoreFailed(str(error)))
        else:
            await hold("persisted", self._parts.history.held)
            self.tell(EntryPersisted(order.signed.entry.round))

    async def _apply(self, order: ApplyEntry) -> None:
        parts = self._parts
        ready = await parts.ledger.apply_voted(order.round, order.settle)
        signed = await asyncio.to_thread(parts.ledger.log.entry, order.round)
        parts.suspects.applied(signed.entry, ready.clipped)
        await parts.work_keeper.commit(signed.entry, order.settle)
        parts.moved()
        self.tell(EntryApplied(order.round, Digest(ready.state_digest), planned_by(ready)))
