"""The machine that agrees on one outer step after the other. No I/O, no clock: `handle(event, now)` -> commands.

Dispatch and life of a round are here; attempts.py, exchange.py, ballots.py and committing.py hold the ideas.
Source: protocol/06-rounds.md, docs/internals.md section 3.
"""

from typing import assert_never

from dilocoxd.errors import ProtocolViolation
from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.rounds import core as states
from dilocoxd.rounds.attempts import (
    announce,
    enter_attempt,
    gather,
    on_abandon,
    on_proposal,
    on_ready,
    send_accept,
)
from dilocoxd.rounds.ballots import on_vote, send_vote
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.commands import (
    Command,
    KeptPromise,
    LeaveFinished,
    ReportPeer,
    SettleContribution,
)
from dilocoxd.rounds.committing import advance_exchange, advance_voting, look_at_drift, on_persisted, try_commit
from dilocoxd.rounds.coordinator import contribution_problem
from dilocoxd.rounds.core import Core, RoundStatus
from dilocoxd.rounds.disputes import on_result_hashes
from dilocoxd.rounds.drift import SAME, Drift
from dilocoxd.rounds.events import (
    DeadlineReached,
    Destination,
    EntryApplied,
    EntryPersisted,
    Event,
    LeaveRequested,
    MessageReceived,
    PassPrepared,
    PeersChanged,
    PhaseOffered,
    RecoveryFailed,
    RecoveryFinished,
    Reduced,
    ReduceFailed,
    Refusal,
    RoundMessage,
    SegmentKey,
    SegmentReceived,
    SegmentSent,
    Started,
    StoreFailed,
    TransferFailed,
)
from dilocoxd.rounds.exchange import Inbox
from dilocoxd.rounds.gathering import Gathering
from dilocoxd.rounds.lifecycle import arrive, finish_round, resume_attempt
from dilocoxd.rounds.limits import PayloadShape, RoundLimits, Site
from dilocoxd.rounds.transfers import on_transfer, on_worker
from dilocoxd.rounds.votes import HeldLock
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.messages import (
    Abandon,
    Accept,
    Committed,
    Leaving,
    Propose,
    ProposeCommit,
    Ready,
    ResultHashes,
    Vote,
)

ROUND_OVER = (states.FAILED, states.LEFT)
OPEN = (states.GATHERING, states.EXCHANGING, states.VOTING)


class RoundMachine:
    """One per daemon. Driver's duties: rounds/events.py and rounds/commands.py."""

    def __init__(
        self, site: Site, shape: PayloadShape, limits: RoundLimits, chain: ChainView, kept: KeptPromise | None = None
    ) -> None:
        gathering = Gathering(site.me, limits)
        inbox = Inbox(max(0, limits.contributors_max - 1))
        self._core = Core(site, shape, limits, chain, gathering, Drift(limits), inbox)
        self._kept = kept

    # --- what the driver and the API read

    @property
    def chain(self) -> ChainView:
        return self._core.chain

    @property
    def waiting_for(self) -> str:
        return self._core.waiting_for

    @property
    def status(self) -> RoundStatus:
        return self._core.status()

    def next_deadline(self) -> Monotonic | None:
        """When to send DeadlineReached; None: only another event can change anything."""
        return self._core.next_wake

    def destination(self, peer: PeerId, key: SegmentKey) -> Destination | Refusal:
        """Where arriving bytes of a segment belong right now, or why they are refused. Changes nothing."""
        core = self._core
        if core.state in ROUND_OVER or key.round < core.round:
            return Refusal("this round is over here", is_transient=False)
        exchange = core.current_exchange(key.round, key.attempt)
        if exchange is not None:
            if core.state not in (states.EXCHANGING, states.VOTING):
                return Refusal("this round is decided here", is_transient=False)
            return exchange.destination(peer, key)
        if (key.round, key.attempt) < (core.round, core.attempt):
            return Refusal("this attempt is given up here", is_transient=False)
        return Refusal("no proposal for this attempt is accepted here yet", is_transient=True)

    def check(self) -> None:
        """Assert what must always be true."""
        core = self._core
        lock = core.lock
        if lock is not None and core.state != states.CATCHING_UP:
            assert lock.entry.round == core.round and lock.entry.parent == core.chain.head, "lock of another round"
            assert lock.attempt <= core.attempt, "locked in an attempt that was not reached"
        if core.exchange is not None:
            assert core.exchange.propose.round == core.round, "exchange of another round"
            assert core.exchange.propose.attempt == core.attempt, "exchange of another attempt"
        assert (core.state == states.EXCHANGING) <= (core.exchange is not None), "exchanging without an exchange"
        assert (core.state in (states.VOTING, states.COMMITTING, states.APPLYING)) <= (core.ballot is not None)
        assert core.waiting_for, "waits without a reason"
        if core.state in OPEN:
            assert core.next_wake is not None, "waits without a deadline"
        if core.attempt > 0 and core.state in OPEN:
            assert core.promised is not None and core.promised.attempt >= core.attempt, "promise is not on disk"

    # --- events

    def handle(self, event: Event, *, now: Monotonic) -> list[Command]:
        """The only way state changes. Stale, double and reordered events return what is still due, often nothing."""
        core = self._core
        core.out = []
        core.wakes = []
        core.now = Monotonic(max(now, core.now))
        core.forgive_lag()
        if core.state in ROUND_OVER:
            return [LeaveFinished(event.detail)] if isinstance(event, StoreFailed) else []  # cut off from its batch
        try:
            self._dispatch(event)
        except ProtocolViolation as violation:
            core.emit(ReportPeer(PeerId(violation.peer), violation.rule, violation.detail))
        self._advance()
        core.next_wake = min(core.wakes, default=None)
        return core.out

    def _take_early(self) -> None:
        """What others said about this height while we still applied the entry before it."""
        core = self._core
        if not core.early:
            return
        due = {peer: ready for peer, ready in core.early.items() if ready.round <= core.round}
        if not due or core.state not in OPEN:
            return
        core.early = {peer: ready for peer, ready in core.early.items() if ready.round > core.round}
        for peer, ready in sorted(due.items()):
            try:
                self._on_message(peer, ready)
            except ProtocolViolation as violation:
                core.emit(ReportPeer(PeerId(violation.peer), violation.rule, violation.detail))

    def _dispatch(self, event: Event) -> None:  # noqa: C901 - one flat match over a closed union
        core = self._core
        match event:
            case Started():
                self._start()
            case DeadlineReached():
                return
            case PeersChanged():
                self._on_peers(event)
            case PhaseOffered():
                self._on_offer(event)
            case MessageReceived():
                self._on_message(event.peer, event.message)
            case SegmentReceived() | SegmentSent() | TransferFailed():
                on_transfer(core, event)
            case Reduced() | PassPrepared() | ReduceFailed():
                on_worker(core, event)
            case EntryPersisted():
                if core.state == states.COMMITTING and event.round == core.round:
                    on_persisted(core)
            case EntryApplied():
                if core.state == states.APPLYING and event.round == core.round:
                    finish_round(core, event)
            case StoreFailed():
                core.state = states.FAILED
                core.waiting_for = f"the operator: {event.detail}"
                core.broadcast(Leaving(core.round, "store failed"))
                core.emit(LeaveFinished(f"store failed: {event.detail}"))
            case RecoveryFinished() | RecoveryFailed():
                self._on_recovery(event)
            case LeaveRequested():
                if core.leave_by is None:
                    core.leave_by = Monotonic(core.now + core.limits.leave_timeout_s)
            case _:
                assert_never(event)

    def _advance(self) -> None:
        """Do whatever is due now, until nothing changes any more."""
        core = self._core
        for _ in range(16):
            before = (core.state, core.attempt, core.round)
            core.wakes = []
            self._take_early()
            self._step()
            if (core.state, core.attempt, core.round) == before or core.state in ROUND_OVER:
                break

    def _step(self) -> None:
        core = self._core
        if core.leave_by is not None and self._can_leave():
            core.state = states.LEFT
            core.waiting_for = "nothing, we left"
            core.broadcast(Leaving(core.round, "leaves on request"))
            core.emit(LeaveFinished("nothing is owed"))
            return
        if core.state not in OPEN:
            return
        can_finish = core.lock is not None and core.lock.results_held and core.state == states.GATHERING
        if core.lock is not None and can_finish and try_commit(core, core.lock):
            return
        look_at_drift(core)
        if core.state == states.GATHERING:
            gather(core)
        elif core.state == states.EXCHANGING:
            advance_exchange(core)
        elif core.state == states.VOTING:
            advance_voting(core)
        if core.state in OPEN and core.is_over(core.repeat_at):
            announce(core)
            send_vote(core)
            send_accept(core)
            core.is_over(core.repeat_at)

    def slots_over(self) -> tuple[int, ...]:
        """INBOX slots whose memory may be given back. A pure query."""
        return self._core.inbox.over(self._core.chain.last_phases)

    def others_due(self, now: Monotonic, own_step_s: float = 0.0) -> Monotonic | None:
        """When the others of the next group are due with their contributions (rounds/gathering.py); None: now or never.

        A pure query for the phase machine, which decides whether to train on until then. `own_step_s`: time of one of
        our inner steps, 0 = unknown.
        """
        core = self._core
        return core.gathering.others_due(core.chain, core.views, now, own_step_s) if core.offer is None else None

    def paces(self) -> tuple[float, ...]:
        """Times of an inner step at the other sites, ascending, where sites do as many steps as fit. A pure query."""
        return tuple(sorted(self._core.gathering.paces(self._core.views).values()))

    def _can_leave(self) -> bool:
        core = self._core
        assert core.leave_by is not None
        is_idle = core.state == states.STARTING or (core.state == states.GATHERING and core.lock is None)
        return (is_idle and self._is_handed_over()) or core.is_over(core.leave_by)

    def _is_handed_over(self) -> bool:
        """Whether some live peer has all that we have: else what we committed last would leave with us."""
        core = self._core
        others = core.live() - {core.me}
        has_ours = any(core.views[p].height >= core.round or p in core.gathering.readies for p in others)
        return core.round == 0 or not others or has_ours

    # --- life of a round

    def _start(self) -> None:
        core = self._core
        assert core.state == states.STARTING, "started twice"
        core.started_at = core.now
        arrive(core)
        kept = self._kept
        if kept is None or (kept.promise.round, kept.promise.parent) != (core.round, core.chain.head):
            return
        promise = kept.promise
        core.promised = promise
        if promise.entry is not None:
            held = kept.results_held
            digest = entry_hash(promise.entry)
            core.lock = HeldLock(promise.voted_attempt, promise.entry, digest, promise.voters, held)
        enter_attempt(core, Attempt(promise.attempt + 1))

    def _on_recovery(self, event: RecoveryFinished | RecoveryFailed) -> None:
        core = self._core
        if core.state != states.CATCHING_UP:
            return
        if isinstance(event, RecoveryFailed):
            core.drift.failed(event.refuted, event.broken, core.now)
            resume_attempt(core)
            return
        is_same = event.chain.head == core.chain.head
        core.chain = event.chain
        asked = {peer: claim for peer, claim in core.asked.items() if peer not in event.unasked}
        core.drift.finished(core.chain, asked, core.now, has_moved=not is_same, broken=event.broken)
        if core.offer is not None and event.settled_phase == core.offer.contribution.phase:
            core.offer = None
        if is_same:
            resume_attempt(core)
        else:
            arrive(core)

    # --- what others say and send

    def _on_peers(self, event: PeersChanged) -> None:
        core = self._core
        core.see(event.peers)
        core.bandwidth = event.bandwidth
        core.is_training = event.is_training
        for view in core.views.values():
            if view.is_live and view.height > 0:
                core.drift.note(core.chain, view.peer, view.height, view.head, core.now, is_late=True)
        for peer in [p for p in core.drift.claims if not core.is_live(p)]:
            del core.drift.claims[peer]

    def _on_offer(self, event: PhaseOffered) -> None:
        core = self._core
        assert core.offer is None, "a contribution is in flight already"
        assert len(event.segment_hashes) == core.shape.num_segments, "segments do not fit the layout"
        problem = contribution_problem(event.contribution, core.chain, core.limits)
        if problem:
            core.emit(SettleContribution(event.contribution.phase, core.round, False, ()))
            return
        core.offer = event
        if core.state in OPEN:
            announce(core)

    def _on_message(self, peer: PeerId, message: RoundMessage) -> None:
        core = self._core
        match message:
            case Ready():
                self._on_ready(peer, message)
            case Propose() | ProposeCommit():
                on_proposal(core, peer, message)
            case Accept():
                core.note_accept(peer, message)
            case Vote():
                on_vote(core, peer, message)
            case ResultHashes():
                on_result_hashes(core, peer, message)
            case Abandon():
                on_abandon(core, peer, message)
            case Committed():
                core.drift.note(core.chain, peer, RoundIndex(message.round + 1), Digest(message.entry_hash), core.now)
            case Leaving():
                core.goodbye(peer, is_gone=True)
            case _:
                assert_never(message)

    def _on_ready(self, peer: PeerId, ready: Ready) -> None:
        core = self._core
        kind = core.drift.note(core.chain, peer, ready.round, Digest(ready.parent), core.now)
        if ready.round == core.round + 1 and len(core.early) < len(core.views) + 1:
            core.early[peer] = ready
        if ready.round > core.round:
            core.goodbye(peer, is_gone=False)  # it is back, and we are behind
        if ready.round < core.round:
            if core.own_vote is not None and core.own_vote.round == ready.round:
                core.send(peer, core.own_vote)
            core.send(peer, Committed(RoundIndex(core.round - 1), core.chain.head))
        if kind != SAME:
            core.gathering.readies.pop(peer, None)
            return
        core.drift.digests[peer] = Digest(ready.state_digest)
        if ready.state_digest != core.chain.state_digest:
            raise ProtocolViolation(peer, "digest_mismatch", f"holds other bits than we do at height {core.round}")
        if core.state in OPEN:
            on_ready(core, peer, ready)
