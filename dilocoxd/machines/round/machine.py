"""The machine that agrees on one outer step after the other. No I/O, no clock: `handle(event, now)` -> commands.

It alone changes its state, by the table below: parts look at the running height and say what follows (outcomes.py), and
`_act` does it. What ends with an attempt or a height is dropped with its object. Source: protocol/06-rounds.md;
docs/internals.md section 3 for its driver.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, assert_never

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange import facts as x
from dilocoxd.machines.exchange.segments import Destination, Refusal, SegmentKey
from dilocoxd.machines.limits import Ourselves, PayloadShape, RoundLimits
from dilocoxd.machines.round import (
    exchanging,
    gathering,
    inputs as e,
    joining,
    outcomes as o,
    outputs as c,
    proposals,
    voting,
)
from dilocoxd.machines.round.height import Height, Terms
from dilocoxd.machines.round.life import RoundLife
from dilocoxd.machines.round.timers import LEAVE, Mark, earliest
from dilocoxd.wire.messages import (
    Abandon,
    Accept,
    Accuse,
    Committed,
    Leaving,
    Propose,
    ProposeCommit,
    Ready,
    ResultHashes,
    TakeBack,
    Vote,
)

LOOKS_MAX: Final = 16
"""Changes of state that one event can bring about."""
ALIVE: Final = (o.STARTING, *o.OPEN, o.COMMITTING, o.APPLYING, o.CATCHING_UP)

TRANSITIONS: Final[Mapping[tuple[str, type], str]] = MappingProxyType(
    {
        (o.STARTING, e.Started): o.GATHERING,
        (o.GATHERING, o.Join): o.GATHERING,
        (o.GATHERING, o.TakeUp): o.EXCHANGING,
        (o.GATHERING, o.VoteOn): o.VOTING,
        (o.GATHERING, o.Commit): o.COMMITTING,
        (o.EXCHANGING, o.VoteOn): o.VOTING,
        (o.VOTING, o.Commit): o.COMMITTING,
        **{(state, o.GiveUp): o.GATHERING for state in o.OPEN},
        **{(state, o.Recover): o.CATCHING_UP for state in o.OPEN},
        (o.COMMITTING, e.EntryPersisted): o.APPLYING,
        (o.APPLYING, e.EntryApplied): o.GATHERING,
        (o.CATCHING_UP, e.RecoveryFinished): o.GATHERING,
        (o.CATCHING_UP, e.RecoveryFailed): o.GATHERING,
        **{(state, o.Leave): o.LEFT for state in ALIVE},
        **{(state, e.StoreFailed): o.FAILED for state in ALIVE},
    }
)
"""(state, what it leads on) -> state. What is not here cannot happen, or is our bug."""


class RoundMachine:
    """One per daemon. Driver's duties: machines/round/inputs.py and machines/round/outputs.py."""

    def __init__(
        self,
        site: Ourselves,
        shape: PayloadShape,
        limits: RoundLimits,
        chain: ChainView,
        kept: c.KeptPromise | None = None,
    ) -> None:
        self._kept: Final = kept
        self._life: Final = RoundLife(Terms(site, shape, limits), chain)
        self._state = o.STARTING
        self._waiting_for = "the start"
        self._wake_at: Monotonic | None = None

    # --- what the driver and the API read; nothing of it changes anything

    @property
    def chain(self) -> ChainView:
        return self._life.height.chain

    @property
    def waiting_for(self) -> str:
        return self._waiting_for

    @property
    def state(self) -> str:
        """One of the names in outcomes.py."""
        return self._state

    @property
    def height(self) -> Height:
        """The running round, to be read only."""
        return self._life.height

    @property
    def status(self) -> c.RoundStatus:
        """What /v1/status shows."""
        attempt = self._life.height.attempt
        group = attempt.exchange.group if attempt.exchange is not None else ()
        if attempt.exchange is None and attempt.voted_on is not None:
            group = tuple(attempt.voted_on.voters)
        place = (self._state, self._life.height.round, attempt.index, attempt.coordinator)
        unconfirmed = frozenset(self._life.book.tips.unconfirmed)
        first = self._life.book.reverts.first_attempt(self._life.height.round)
        return c.RoundStatus(*place, group, attempt.observers, self._waiting_for, unconfirmed, first)

    def next_deadline(self) -> Monotonic | None:
        """When to send DeadlineReached; None: only another event can change anything."""
        return self._wake_at

    def destination(self, peer: PeerId, key: SegmentKey) -> Destination | Refusal:
        """Where arriving bytes of a segment belong right now, or why they are refused."""
        height, exchange = self._life.height, self._life.height.attempt.exchange
        if self._state in o.OVER or key.round < height.round:
            return Refusal("this round is over here", is_transient=False)
        if exchange is not None and exchange.is_of(key.round, key.attempt):
            if self._state not in o.AT_WORK:
                return Refusal("this round is decided here", is_transient=False)
            return exchange.destination(peer, key)
        if (key.round, key.attempt) < (height.round, height.attempt.index):
            return Refusal("this attempt is given up here", is_transient=False)
        return Refusal("no proposal for this attempt is accepted here yet", is_transient=True)

    def slots_over(self) -> tuple[int, ...]:
        """INBOX slots whose memory may be given back."""
        return self._life.own.inbox.over(self.chain.last_phases)

    def others_due(self, now: Monotonic, own_step_s: float = 0.0) -> Monotonic | None:
        """When the others of the next group are due with their contributions (gathering.py); None: now or never.

        For the phase machine, which decides whether to train on until then. `own_step_s`: time of one of our inner
        steps, 0 = unknown.
        """
        return gathering.others_due(self._life.height, now, own_step_s) if self._life.own.offer is None else None

    def paces(self) -> tuple[float, ...]:
        """Times of an inner step at the other sites, ascending, where sites do as many steps as fit."""
        return tuple(sorted(gathering.paces(self._life.height).values()))

    def check(self) -> None:
        """Assert what must always be true."""
        height, attempt, lock = self._life.height, self._life.height.attempt, self._life.height.lock
        if lock is not None and self._state != o.CATCHING_UP:
            assert lock.entry.round == height.round and lock.entry.parent == height.chain.head, "lock of another round"
            assert lock.attempt <= attempt.index, "locked in an attempt that was not reached"
        if attempt.exchange is not None:
            assert attempt.exchange.is_of(height.round, attempt.index), "exchange of another attempt"
        assert (self._state == o.EXCHANGING) <= (attempt.exchange is not None), "exchanging without an exchange"
        assert (self._state in (o.VOTING, o.COMMITTING, o.APPLYING)) <= (attempt.voted_on is not None)
        assert self._waiting_for, "waits without a reason"
        if self._state in o.OPEN:
            assert self._wake_at is not None, "waits without a deadline"
        if attempt.index > 0 and self._state in o.OPEN:
            assert self._life.promised is not None and self._life.promised.attempt >= attempt.index, (
                "promise is not on disk"
            )

    # --- one event

    def handle(self, event: e.Event, *, now: Monotonic) -> list[c.Command]:
        """The only way state changes. Stale, double and reordered events return what is still due, often nothing."""
        life = self._life
        life.advance(now, self._wake_at)
        if self._state in o.OVER:
            # Cut off from its batch: the driver must hear of the end.
            return [c.LeaveFinished(event.detail)] if isinstance(event, e.StoreFailed) else []
        outcome = self._hear(event)
        self._act(outcome)
        life.accuse()
        life.take_back()
        life.extend_recovery()
        for _ in range(LOOKS_MAX if self._state not in o.OVER else 0):
            before = (self._state, life.height.attempt.index, life.height.round)
            self._wake_at = self._look()
            if (self._state, life.height.attempt.index, life.height.round) == before or self._state in o.OVER:
                break
        return life.out

    def _hear(self, event: e.Event) -> o.Outcome | e.Event | None:  # noqa: C901 - one flat match over a closed union
        """What an event leads to by itself; what is due because of it is looked at after that."""
        life, height, state, now = self._life, self._life.height, self._state, self._life.now
        match event:
            case e.MessageReceived():
                return self._hear_message(event.peer, event.message)
            case x.SegmentReceived() | x.SegmentSent() | x.TransferFailed():
                return exchanging.on_bytes(height, event, state, now)
            case x.Reduced() | x.PassPrepared() | x.ReduceFailed():
                return exchanging.on_bytes(height, event, state, now)
            case e.Audited():
                return exchanging.on_audited(height, event, state, now)
            case e.EntryFalse():
                life.own.false.add(event.entry_hash, event.round, event.owners)
            case e.PeersChanged():
                life.own.is_training, life.own.bandwidth = event.is_training, event.bandwidth
                life.own.spoiled = event.spoiled if state != o.CATCHING_UP else None
                life.book.see(event.peers, height.chain, now, is_old=event.is_old)
                height.forget_buffered({view.peer for view in event.peers if not view.is_live})
            case e.PhaseOffered():
                life.offer(event, is_told=state in o.OPEN)
            case e.EntryPersisted() | e.EntryApplied():
                is_awaited = (state, type(event)) in TRANSITIONS and event.round == height.round
                return event if is_awaited else None
            case e.RecoveryFinished() | e.RecoveryFailed():
                return event if state == o.CATCHING_UP else None
            case e.Started():
                life.book.reverts.load(event.taken_back)
                return event
            case e.StoreFailed():
                return event
            case e.BranchAdopted():
                life.book.tips.pardon(event.peers)
                return o.Recover("the operator adopts another branch", peers=event.peers) if state in o.OPEN else None
            case e.LeaveRequested():
                life.own.is_leaving = True
                life.timers.start(Mark.LEAVE, now)
            case e.DeadlineReached():
                return None
            case _:
                assert_never(event)
        return None

    def _hear_message(self, peer: PeerId, message: e.RoundMessage) -> o.Outcome | None:  # noqa: C901 - one flat match
        life, height, state, now = self._life, self._life.height, self._state, self._life.now
        match message:
            case Abandon():
                return joining.on_abandon(height, peer, message, state)
            case Ready():
                return joining.on_ready(height, peer, message, state, now)
            case Propose() | ProposeCommit():
                return proposals.on_proposal(height, peer, message, state, now)
            case Vote():
                return voting.on_vote(height, peer, message, state)
            case Accept():
                voting.on_accept(height, peer, message)
            case Accuse():
                return voting.on_accuse(height, peer, message)
            case TakeBack():
                return voting.on_take_back(height, peer, message)
            case ResultHashes():
                return voting.on_result_hashes(height, peer, message, now)
            case Committed():
                stands_at, head = RoundIndex(message.round + 1), Digest(message.entry_hash)
                life.book.tips.hear(height.chain, peer, stands_at, head, now)
            case Leaving():
                life.book.goodbye(peer, has_departed=True)
                height.forget_buffered({peer})  # said before it left
            case _:
                assert_never(message)
        return None

    # --- looks: what is due now

    def _look(self) -> Monotonic | None:
        """Do what is due; returns when to look again."""
        life, now = self._life, self._life.now
        if self._state in o.OPEN and (arrived := life.height.arrived()):
            for peer, ready in sorted(arrived.items()):
                self._act(joining.on_ready(life.height, peer, ready, self._state, now))
        leave_end = life.timers.end(LEAVE, life.terms.limits) if life.own.is_leaving else None
        if leave_end is not None and (self._is_free_to_go() or now >= leave_end):
            self._act(o.Leave())
            return None
        if self._state in o.OPEN and (left := life.left_behind()) is not None:
            self._act(left)
        if self._state not in o.OPEN:
            return leave_end
        found = decided = self._decided()
        if decided is None or isinstance(decided, o.Waiting):
            found = joining.look_at_tips(life.height, self._state, now)
        tips_until: Monotonic | None = None
        if isinstance(found, o.Waiting):
            tips_until = earliest(found.until, decided.until if isinstance(decided, o.Waiting) else None)
            found = self._look_at_attempt()
        self._act(found)
        if self._state not in o.OPEN:
            return leave_end
        if now >= life.repeat_at:
            life.repeat()
        until = found.until if isinstance(found, o.Waiting) else None
        return earliest(leave_end, tips_until, until, life.repeat_at)

    def _decided(self) -> o.Outcome | None:
        """What we are locked on may be decided by votes that came after we gave its attempt up."""
        height, lock = self._life.height, self._life.height.lock
        if self._state != o.GATHERING or lock is None or not lock.results_held:
            return None
        return voting.decided_by(height, lock, self._life.now)

    def _look_at_attempt(self) -> o.Outcome:
        height, now = self._life.height, self._life.now
        if self._state == o.GATHERING:
            return gathering.look(height, self._life.timers, now)
        return exchanging.look(height, now) if self._state == o.EXCHANGING else voting.look(height, now)

    def _is_free_to_go(self) -> bool:
        """Whether nobody needs us where we are, and some live peer has all that we have: else what we committed last
        would leave with us (R17). An attempt that we only observe ends without us, and its results may never come."""
        height = self._life.height
        others = self._life.book.live() - {height.me}
        is_needed = self._state in o.AT_WORK and height.me in {*height.attempt.parties, height.attempt.coordinator}
        is_idle = self._state == o.STARTING or (self._state in o.OPEN and height.lock is None and not is_needed)
        return is_idle and (height.round == 0 or not others or any(height.is_reached_by(p) for p in others))

    # --- what outcomes and answers lead to

    def _act(self, found: o.Outcome | e.Event | None) -> None:  # noqa: C901 - one flat match
        """Carry out what a part decided, or an answer brings; the state follows from the table."""
        life = self._life
        if isinstance(found, o.Waiting | o.Told):
            life.emit(*found.orders)
            self._waiting_for = found.reason if isinstance(found, o.Waiting) else self._waiting_for
            return
        if isinstance(found, o.Violation):
            life.emit(c.ReportPeer(found.peer, found.rule, found.detail))
            return
        if found is None:
            return
        state = TRANSITIONS.get((self._state, type(found)))
        assert state is not None, f"{type(found).__name__} while {self._state}"
        match found:
            case e.Started():
                life.start(self._kept)
            case o.Join():
                life.join(found)
            case o.GiveUp():
                life.give_up(found)
            case o.TakeUp():
                life.take_up(found)
            case o.VoteOn():
                life.vote(found)
            case o.Commit():
                life.commit(found)
                self._waiting_for = f"the log, which stores entry {life.height.round}"
            case o.Recover():
                num_peers = life.recover(found, is_gathering=self._state == o.GATHERING)
                self._waiting_for = f"recovery from {num_peers} peer{'s' * (num_peers != 1)}: {found.reason}"
            case e.EntryPersisted():
                life.apply()
                self._waiting_for = f"the outer worker, which applies entry {life.height.round}"
            case e.EntryApplied():
                life.finish(found)
            case e.RecoveryFinished() | e.RecoveryFailed():
                life.resume(found)
            case o.Leave():
                life.say_goodbye("leaves on request", "nothing is owed")
                self._waiting_for = "nothing, we left"
            case e.StoreFailed():
                life.say_goodbye("store failed", f"store failed: {found.detail}")
                self._waiting_for = f"the operator: {found.detail}"
        self._state = state
