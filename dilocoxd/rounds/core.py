"""What the round machine remembers: one mutable record that its parts (attempts.py, committing.py, round.py) share.

Decides nothing by itself; the parts are functions on it, so that each file holds one idea.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from dilocoxd.ids import Attempt, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.commands import Broadcast, Command, OrderPass, OrderReduce, OwnedReduction, Promise, Send
from dilocoxd.rounds.coordinator import coordinator_order
from dilocoxd.rounds.drift import Claim, Drift
from dilocoxd.rounds.events import PeerView, PhaseOffered, RoundMessage
from dilocoxd.rounds.exchange import Exchange, Inbox
from dilocoxd.rounds.gathering import Gathering
from dilocoxd.rounds.limits import PayloadShape, RoundLimits, Site
from dilocoxd.rounds.votes import AcceptBox, HeldLock, VoteBox
from dilocoxd.wire.messages import Accept, Lock, Propose, ProposeCommit, Ready, Vote

if TYPE_CHECKING:
    from dilocoxd.rounds.disputes import Dispute

STARTING: Final = "starting"
GATHERING: Final = "gathering"
EXCHANGING: Final = "exchanging"
VOTING: Final = "voting"
COMMITTING: Final = "committing"
APPLYING: Final = "applying"
CATCHING_UP: Final = "catching_up"
FAILED: Final = "failed"
LEFT: Final = "left"

LAG_S: Final = 1.0
"""Woken later than this after a deadline: we were not running."""
NOT_YET: Final = Monotonic(0.0)
FIRST: Final = Attempt(0)

Order = tuple[RoundIndex, Attempt, int, int | None]
"""(round, attempt, pass, segment or None for a whole pass): an order that the outer worker has not answered."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A proposal that could not be accepted yet."""

    message: Propose | ProposeCommit
    received_at: Monotonic


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """What /v1/status shows of the round."""

    state: str
    round: RoundIndex
    attempt: Attempt
    coordinator: PeerId | None
    group: tuple[PeerId, ...]
    observers: tuple[PeerId, ...]
    waiting_for: str
    unconfirmed: frozenset[PeerId]
    """Stand on a chain that recovery could not take, as far as we know."""


@dataclass(slots=True)
class Times:
    """When the parts of the current round were reached."""

    started_at: Monotonic = NOT_YET
    gathered_at: Monotonic = NOT_YET
    exchanged_at: Monotonic = NOT_YET
    voted_at: Monotonic = NOT_YET
    persisted_at: Monotonic = NOT_YET


@dataclass(slots=True)
class Core:
    """State of one RoundMachine."""

    site: Site
    shape: PayloadShape
    limits: RoundLimits
    chain: ChainView
    gathering: Gathering
    drift: Drift
    inbox: Inbox
    now: Monotonic = NOT_YET
    out: list[Command] = field(default_factory=list)
    next_wake: Monotonic | None = None
    wakes: list[Monotonic] = field(default_factory=list)
    """Times at which something must be looked at again."""
    state: str = STARTING
    waiting_for: str = "the start"
    views: dict[PeerId, PeerView] = field(default_factory=dict)
    gone: set[PeerId] = field(default_factory=set)
    """Said goodbye; not waited for even before membership knows."""
    known_live: frozenset[PeerId] | None = None
    """What `live` answers; None after a change of `views` or `gone`."""
    offer: PhaseOffered | None = None
    voted_phase: PhaseId | None = None
    """Newest of our contributions that an entry names for which we voted: others may have committed it."""
    started_at: Monotonic = NOT_YET
    """Of this process life."""
    # --- the round
    attempt: Attempt = FIRST
    attempt_started_at: Monotonic = NOT_YET
    promised: Promise | None = None
    lock: HeldLock | None = None
    ballot: HeldLock | None = None
    """The entry that is being voted on now; for a voter it is also the lock."""
    owned: tuple[OwnedReduction, ...] = ()
    """Of the exchange that made `lock` or `ballot`."""
    exchange: Exchange | None = None
    votes: VoteBox = field(default_factory=VoteBox)
    accepts: AcceptBox = field(default_factory=AcceptBox)
    mute: set[PeerId] = field(default_factory=set)
    """Live, but did not answer in time: nobody waits for their acceptance until they give one."""
    pending: dict[PeerId, Pending] = field(default_factory=dict)
    early: dict[PeerId, Ready] = field(default_factory=dict)
    """Ready messages for the next height."""
    coordinator: PeerId | None = None
    voting_since: Monotonic = NOT_YET
    dispute: "Dispute | None" = None
    decided_since: Monotonic | None = None
    """Since when a group (or a commit) is possible by what we know: a coordinator silent for longer is passed over."""
    promised_to: tuple[PeerId, Propose] | None = None
    """The proposal of this attempt that we accepted as an observer before we could receive anything."""
    uninvolved_for: float | None = None
    """Recovery began when we had been in this attempt for so long and had accepted nothing: we may come back to it."""
    outside_since: Monotonic | None = None
    """A proposal without us was seen in this attempt."""
    outside_of: set[PeerId] = field(default_factory=set)
    """Who sent us such proposals."""
    failures: list[str] = field(default_factory=list)
    times: Times = field(default_factory=Times)
    own_vote: Vote | None = None
    """Our newest vote; after the commit it still helps those who missed it."""
    # --- across rounds
    outstanding: set[Order] = field(default_factory=set)
    repeat_at: Monotonic = NOT_YET
    asked: dict[PeerId, Claim] = field(default_factory=dict)
    leave_by: Monotonic | None = None
    is_training: bool = False
    """We train: our contribution is waited for too."""
    bandwidth: int = 0
    """Our own measured outgoing bytes/s; 0 = unknown."""

    @property
    def me(self) -> PeerId:
        return self.site.me

    @property
    def round(self) -> RoundIndex:
        return self.chain.height

    def emit(self, *commands: Command) -> None:
        for command in commands:
            if isinstance(command, OrderReduce):
                self.outstanding.add((command.round, command.attempt, command.pass_index, command.segment))
            elif isinstance(command, OrderPass):
                self.outstanding.add((command.round, command.attempt, command.pass_index, None))
            self.out.append(command)

    def forgive_lag(self) -> None:
        """We were not running (stopped, swapped out, overloaded) when we wanted to be woken: others cannot be blamed
        for what we did not hear meanwhile, so every running time-out starts later by that much."""
        if self.next_wake is None or self.now - self.next_wake < LAG_S:
            return
        lag = self.now - self.next_wake
        for name in ("attempt_started_at", "voting_since", "decided_since", "outside_since"):
            since = getattr(self, name)
            if since is not None:
                setattr(self, name, Monotonic(since + lag))
        if self.exchange is not None:
            self.exchange.progress_at = Monotonic(self.exchange.progress_at + lag)
        if self.dispute is not None:
            self.dispute.since = Monotonic(self.dispute.since + lag)

    def is_over(self, at: float) -> bool:
        """Whether this time has come; if not, the machine asks to be woken then."""
        if self.now >= at:
            return True
        self.wakes.append(Monotonic(at))
        return False

    def send(self, peer: PeerId, message: RoundMessage) -> None:
        if peer != self.me:
            self.emit(Send(peer, message))

    def broadcast(self, message: RoundMessage) -> None:
        self.emit(Broadcast(message))

    def see(self, views: Iterable[PeerView]) -> None:
        """What membership says now. Who was not there and is, has come back after its goodbye."""
        absent = {peer for peer, view in self.views.items() if not view.is_live}
        self.views = {view.peer: view for view in views if view.peer != self.me}
        self.gone -= {peer for peer in absent if peer in self.views and self.views[peer].is_live}
        self.gathering.pace.gone(peer for peer, view in self.views.items() if not view.is_live)
        self.known_live = None

    def goodbye(self, peer: PeerId, *, is_gone: bool) -> None:
        """The peer said that it leaves, or showed that it is back."""
        if is_gone != (peer in self.gone):
            self.gone ^= {peer}
            self.known_live = None

    def note_accept(self, peer: PeerId, message: Accept) -> None:
        """An observer's promise, kept while it concerns our round."""
        self.mute.discard(peer)
        if message.round == self.round:
            self.accepts.add(peer, message.attempt, message.coordinator)

    def needs(self, peer: PeerId) -> bool:
        """Our attempt cannot be decided without this peer.

        A party, or an observer that has not accepted our proposal: it may commit something else without us.
        """
        if peer in self.parties():
            return True
        if self.exchange is None or peer not in self.exchange.propose.observers or self.gathering.is_left_out(peer):
            return False
        return self.accepts.accepted.get(peer, {}).get(self.attempt) != self.coordinator

    def is_live(self, peer: PeerId) -> bool:
        return peer in self.live()

    def live(self) -> frozenset[PeerId]:
        """Ourselves and everybody worth waiting for."""
        if self.known_live is None:
            others = {peer for peer, view in self.views.items() if view.is_live and peer not in self.gone}
            self.known_live = frozenset({self.me, *others})
        return self.known_live

    def present(self) -> frozenset[PeerId]:
        """Live peers without those that stand on a chain that recovery could not take: they will not answer here."""
        return self.live().difference(self.drift.refuted) if self.drift.refuted else self.live()

    def present_views(self) -> dict[PeerId, PeerView]:
        """What membership and they themselves say of those, with ourselves as one more peer."""
        trains = self.is_training and self.leave_by is None
        own = PeerView(self.me, is_live=True, is_training=trains, height=self.round, head=self.chain.head)
        present, here = self.present(), self.drift.here
        views = {peer: view for peer, view in self.views.items() if peer in present}
        views |= {p: replace(views[p], height=self.round, head=self.chain.head) for p in here.intersection(views)}
        return {**views, self.me: own}

    def candidates(self) -> list[PeerId]:
        """Who may coordinate this attempt, best first: live peers at our head."""
        me, readies, head = self.me, self.gathering.readies, self.chain.head
        known = {me, *readies, *self.drift.here}
        here = [peer for peer in self.present() if peer in known or self.views[peer].head == head]
        return coordinator_order(self.site.run_id, self.round, self.attempt, here)

    def locks(self) -> dict[PeerId, Lock | None]:
        """Locks of those who are ready in this attempt, ours included."""
        found = {p: r.lock for p, r in self.gathering.readies.items() if r.attempt == self.attempt}
        found[self.me] = self.lock.on_wire if self.lock is not None else None
        return found

    def ready_message(self) -> Ready:
        return Ready(
            round=self.round,
            attempt=self.attempt,
            parent=self.chain.head,
            state_digest=self.chain.state_digest,
            contribution=self.offer.contribution if self.offer is not None and self.leave_by is None else None,
            lock=self.lock.on_wire if self.lock is not None else None,
            bandwidth=self.bandwidth,
        )

    def current_exchange(self, round_index: RoundIndex, attempt: Attempt) -> Exchange | None:
        """The running exchange if it is this one."""
        exchange = self.exchange
        if exchange is None or (exchange.propose.round, exchange.propose.attempt) != (round_index, attempt):
            return None
        return exchange

    def parties(self) -> frozenset[PeerId]:
        """Without whom the running attempt cannot end."""
        if self.ballot is not None:
            return frozenset(self.ballot.voters)
        return frozenset(self.exchange.group) if self.exchange is not None else frozenset()

    def status(self) -> RoundStatus:
        exchange, ballot = self.exchange, self.ballot
        group = exchange.group if exchange is not None else tuple(ballot.voters) if ballot is not None else ()
        observers = exchange.propose.observers if exchange is not None else ()
        unconfirmed = frozenset(self.drift.refuted)
        place = (self.state, self.round, self.attempt, self.coordinator)
        return RoundStatus(*place, group, observers, self.waiting_for, unconfirmed)
