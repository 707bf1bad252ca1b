"""One round of the chain: built when we stand at its tip, dropped with all that was said when we stand at the next.

Holds the running attempt, the lock, votes and words; answers what follows from them. Source: protocol/06-rounds.md.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import Attempt, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.facts import PassPrepared, SegmentFact, SegmentMoved
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.limits import Ourselves, PayloadShape, RoundLimits
from dilocoxd.machines.peers.false_results import FalseResults
from dilocoxd.machines.peers.readiness import Readiness
from dilocoxd.machines.peers.standing import PeerBook
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round.attempt import PROPOSALS_MAX, Proposal, RunningAttempt
from dilocoxd.machines.round.grouping import contribution_problem, coordinator_order, missing_majority
from dilocoxd.machines.round.inputs import PhaseOffered, RoundMessage
from dilocoxd.machines.round.locks import NO_LOCK, AcceptBox, HeldLock, LockDecision, VoteBox, resolve_locks
from dilocoxd.machines.round.outcomes import Violation
from dilocoxd.machines.round.outputs import InFlight, RoundSummary, Send
from dilocoxd.machines.round.timers import Mark, Timers
from dilocoxd.wire.entry import Evidence
from dilocoxd.wire.local.outer_worker import OwnedSegment
from dilocoxd.wire.messages import Committed, Lock, Propose, Ready, Vote

NOT_YET: Final = Monotonic(0.0)
WorkerOrder = tuple[RoundIndex, Attempt, int, int | None]
"""(round, attempt, pass, segment or None for a whole pass)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What does not change while the process lives."""

    site: Ourselves
    shape: PayloadShape
    limits: RoundLimits


class OwnSite:
    """What we ourselves bring, whatever the height."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox: Final = inbox
        self.orders: Final[set[WorkerOrder]] = set()
        """Given to the outer worker, not answered yet."""
        self.offer: PhaseOffered | None = None
        """Our contribution that no entry names yet."""
        self.voted_phase: PhaseId | None = None
        """Newest of our contributions that an entry names for which we voted: others may have committed it."""
        self.vote: Vote | None = None
        """Our newest vote; after the commit it still helps those who missed it."""
        self.is_training = False
        """We train: our contribution is waited for too."""
        self.spoiled: tuple[RoundIndex | None, RoundIndex] | None = None
        """Rounds of the entries of which one has spoiled our state (R29)."""
        self.false: Final = FalseResults()
        """What we have found false of the results of others."""
        self.is_leaving = False
        self.bandwidth = 0
        """Measured outgoing bytes/s; 0 = unknown."""

    def expects(self, event: SegmentFact) -> bool:
        """Whether this was to come; what the outer worker answers is no longer awaited. False if that was not ordered,
        or answered before."""
        if isinstance(event, SegmentMoved):
            return True
        segment = None if isinstance(event, PassPrepared) else event.segment
        order = (event.round, event.attempt, event.pass_index, segment)
        is_answer = order in self.orders
        self.orders.discard(order)
        return is_answer


@dataclass(slots=True)
class Times:
    """When the parts of the round were reached."""

    started_at: Monotonic
    gathered_at: Monotonic = NOT_YET
    exchanged_at: Monotonic = NOT_YET
    voted_at: Monotonic = NOT_YET
    persisted_at: Monotonic = NOT_YET


class Height:
    """A round, from its tip to the next one."""

    def __init__(
        self,
        terms: Terms,
        own: OwnSite,
        book: PeerBook,
        chain: ChainView,
        now: Monotonic,
        before: "Height | None" = None,
    ) -> None:
        """`before`: the height that we leave; what it heard of this one is taken over."""
        self.terms: Final = terms
        self.me: Final = terms.site.me
        self.limits: Final = terms.limits
        self.own: Final = own
        self.book: Final = book
        self.chain = chain
        """At its tip; a recovery may find another view of the same one."""
        self.round: Final = chain.height
        self.words: Final = Readiness()
        self.buffered: Final[dict[PeerId, Ready]] = dict(before.buffered) if before is not None else {}
        """Ready messages of the next height."""
        self.votes: Final = VoteBox()
        self.accepts: Final = AcceptBox()
        self.timers: Final = Timers()
        self.times: Final = Times(started_at=now)
        self.lock: HeldLock | None = None
        """The entry that we voted for last."""
        self.owned: tuple[OwnedSegment, ...] = ()
        """Of the exchange that made the lock or the entry that is voted on."""
        self.failures: Final[list[str]] = []
        self.owners: tuple[PeerId, ...] = ()
        """Of the last exchange of this round: they hold inputs already."""
        self.owners_before: Final[tuple[PeerId, ...]] = (
            (before.owners or before.owners_before) if before is not None else ()
        )
        """Of the newest round before this one that we exchanged in."""
        self.attempt = RunningAttempt(Attempt(0), now)

    # --- what is the same for everybody who asks

    def candidates(self) -> list[PeerId]:
        """Who may coordinate this attempt, best first: live peers at our head."""
        records, readies, head = self.book.records, self.words.readies(), self.chain.head
        here = [
            peer
            for peer in self.book.present()
            if peer == self.me
            or peer in readies
            or records[peer].tip.is_at_our_head
            or ((view := records[peer].view) is not None and view.head == head)
        ]
        return self.ordered(here)

    def ordered(self, peers: Iterable[PeerId]) -> list[PeerId]:
        """In the order in which they are asked to coordinate this attempt; who is on probation after all others."""
        order = coordinator_order(self.terms.site.run_id, self.round, self.attempt.index, peers)
        return sorted(order, key=self.chain.is_on_probation) if self.chain.served else order

    def latest_attempt(self, own: Attempt) -> Attempt:
        """The attempt to be in, at least `own` (R5)."""
        return self.words.latest_attempt(self.book.live(), own, self.suspected())

    def locks_here(self) -> dict[PeerId, Lock | None]:
        """Of those who are ready in this attempt, ourselves included."""
        is_void, index = self.book.reverts.is_void, self.attempt.index
        said = [(p, r.lock) for p, r in self.words.readies().items() if r.attempt == index]
        locks = {p: None if lock is not None and is_void(lock.entry_hash) else lock for p, lock in said}
        locks[self.me] = self.lock.on_wire if self.lock is not None else None
        return locks

    def lock_decision(self) -> LockDecision:
        """What the locks of those who are ready in this attempt demand (R13).

        With `quorum = available` an entry whose payload nobody live holds is given up: a fork if it was committed."""
        locks = self.locks_here()
        if not any(locks.values()):
            return NO_LOCK  # as a rule: this is asked at every event
        may_fork, is_fresh = not self.limits.has_majority_quorum, self.chain.is_on_probation
        live = self.book.present() - self.suspected()
        return resolve_locks(locks, live, self.attempt.index, may_fork=may_fork, is_fresh=is_fresh)

    def evidence(self) -> tuple[Evidence, ...]:
        """What our proposal would hold against others (R27)."""
        return self.book.double_votes.pending(self.chain)

    def left_out_beside(self, evidence: Collection[Evidence]) -> frozenset[PeerId]:
        """Who voted twice, by the chain and this evidence, and so is in no group as long as anybody else trains."""
        return self._unless_alone(self.chain.left_out_by(evidence))

    def left_out_here(self, evidence: Collection[Evidence]) -> frozenset[PeerId]:
        """The same for a group that we propose ourselves: without those either of whom we have found a result false
        (R29.12), unless there would be no majority then of those at work."""
        left_out, liars = self.chain.left_out_by(evidence), frozenset(self.own.false.liars(self.round))
        if not left_out and not liars:
            return left_out  # as a rule: this is asked at every event
        if liars and self.limits.has_majority_quorum and self._lacks_majority(liars, self.suspected(), evidence):
            liars = frozenset()
        return self._unless_alone(left_out | liars)

    def suspected(self) -> frozenset[PeerId]:
        """Who raises attempts alone, and is not followed, not waited for, not proposed (R5.3, R5.4)."""
        suspected = self.book.suspected()
        return suspected - self._needed_though_suspected() if suspected else suspected

    def is_suspected(self, peer: PeerId) -> bool:
        """Whether it is one of them."""
        return self.book.is_suspected(peer) and peer not in self._needed_though_suspected()

    def _needed_though_suspected(self) -> frozenset[PeerId]:
        """Who counts for a majority that those at work are not without them (R5.5): the round would stand for ever."""
        suspected, evidence = self.book.suspected(), self.evidence()
        if self.limits.has_majority_quorum and self._lacks_majority(suspected, suspected, evidence):
            return self.chain.electorate(evidence) & suspected
        return frozenset()

    def may_need(self, peer: PeerId) -> bool:
        """Whether nothing may go on without this peer, wherever it was led (R5.5): it voted for the entry on which we
        are locked, or a majority is counted with it."""
        if self.lock is not None and peer in self.lock.voters:
            return True
        return self.limits.has_majority_quorum and peer in self.chain.electorate(self.evidence())

    def _lacks_majority(self, without: Set[PeerId], suspected: Set[PeerId], evidence: Collection[Evidence]) -> bool:
        """Whether those at work are no majority but for these."""
        electorate, views = self.chain.electorate(evidence), self.present_views()
        others = [p for p in electorate & views.keys() - without if self._is_at_work(views[p], suspected)]
        return bool(missing_majority({p for p in others if not self.words.gives_up_often(p)}, electorate))

    def _unless_alone(self, left_out: frozenset[PeerId]) -> frozenset[PeerId]:
        if not left_out:
            return left_out  # as a rule: who is there need not be asked
        views = self.present_views()
        return left_out if any(self.is_at_work(views[p]) for p in views.keys() - left_out) else frozenset()

    def is_at_work(self, view: PeerView) -> bool:
        """Whether the peer offers what the next entry may name, or is waited for until it does. One that hangs, or
        offers nothing that counts, would else stop those left out for ever (R27.9)."""
        return self._is_at_work(view, self.suspected())

    def _is_at_work(self, view: PeerView, suspected: Set[PeerId]) -> bool:
        peer, record = view.peer, self.book.records[view.peer]
        if peer in suspected or record.has_missed_join or self.words.left(peer) == self.attempt.index:
            return False
        ready = self.words.ready(peer)
        if ready is not None and ready.contribution is not None:
            return not contribution_problem(ready.contribution, self.chain, self.limits)
        return view.is_training and view.height in (self.round, self.round - 1) and not record.is_straggler

    def grace_since(self, left_out: Set[PeerId]) -> Monotonic:
        """From when on stragglers have their grace. Offers of those left out start none: they stand before anybody else
        has finished, and the first one who has would go alone."""
        first = self.timers.first(Mark.CONTRIBUTION, left_out)
        return first if first is not None else self.attempt.since

    def present_views(self) -> dict[PeerId, PeerView]:
        """Of everybody who may take part, ourselves included."""
        trains = self.own.is_training and not self.own.is_leaving
        return self.book.present_views(self.chain, is_training=trains)

    def is_left_out(self, peer: PeerId) -> bool:
        """Gave up too many attempts of this round, or keeps all from staying in one."""
        return self.words.gives_up_often(peer) or self.is_suspected(peer)

    def is_left_out_of(self, proposal: Proposal) -> bool:
        """Whether a group forms without us."""
        return isinstance(proposal, Propose) and self.me not in {
            *proposal.observers,
            *(c.peer for c in proposal.contributions),
        }

    def needs(self, peer: PeerId) -> bool:
        """Our attempt cannot be decided without this peer.

        A party, or an observer that has not accepted our proposal: it may commit something else without us.
        """
        attempt = self.attempt
        if peer in attempt.parties:
            return True
        if peer not in attempt.observers or self.is_left_out(peer):
            return False
        return self.accepts.accepted.get(peer, {}).get(attempt.index) != attempt.coordinator

    def is_reached_by(self, peer: PeerId) -> bool:
        """Whether the peer stands on our head, or on ahead as far as we know. What it said before it was gone is no
        sign of that (R17.4)."""
        record = self.book.records[peer]
        if record.tip.is_at_our_head:
            return True
        view, head = record.view, self.chain.head
        return view is not None and (view.head == head or (view.height > self.round and not record.tip.is_unconfirmed))

    def ready_message(self) -> Ready:
        """Where we stand."""
        own = self.own
        return Ready(
            round=self.round,
            attempt=self.attempt.index,
            parent=self.chain.head,
            state_digest=self.chain.state_digest,
            contribution=own.offer.contribution if own.offer is not None and not own.is_leaving else None,
            offer=own.offer.offer if own.offer is not None and not own.is_leaving else None,
            lock=self.lock.on_wire if self.lock is not None else None,
            bandwidth=own.bandwidth,
        )

    def sends(self, peers: Iterable[PeerId], message: RoundMessage) -> tuple[Send, ...]:
        """The message to each of them but ourselves."""
        return tuple([Send(peer, message) for peer in peers if peer != self.me])

    def in_flight(self) -> InFlight | None:
        """Our contribution that recovery may have to settle; None if we offer none."""
        if self.own.offer is None:
            return None
        lock = self.lock if self.lock is not None and self.lock.results_held else None
        return InFlight(self.own.offer.contribution, lock.entry if lock is not None else None, self.owned)

    def summary(self, voted_on: HeldLock, applied_at: Monotonic) -> RoundSummary:
        """The round that ends with this entry."""
        return RoundSummary(
            round=self.round,
            num_attempts=self.attempt.index - self.book.reverts.first_attempt(self.round) + 1,
            coordinator=self.attempt.coordinator,
            contributions=voted_on.entry.contributions,
            is_contributor=any(c.peer == self.me for c in voted_on.entry.contributions),
            entry_hash=voted_on.entry_hash,
            started_at=self.times.started_at,
            gathered_at=self.times.gathered_at,
            exchanged_at=self.times.exchanged_at,
            voted_at=self.times.voted_at,
            persisted_at=self.times.persisted_at,
            applied_at=applied_at,
            failures=tuple(self.failures),
            owners=voted_on.owners,
        )

    def help_for(self, peer: PeerId, round_index: RoundIndex) -> tuple[Send, ...]:
        """What a peer that is still at this older round is told (R15)."""
        vote = self.own.vote
        own = self.sends([peer], vote) if vote is not None and vote.round == round_index else ()
        return (*own, *self.sends([peer], Committed(RoundIndex(self.round - 1), self.chain.head)))

    # --- what enters

    def hear_attempt(self, peer: PeerId, attempt: Attempt) -> Violation | None:
        """The peer says that it is in this attempt; a Violation if that is not to be believed (R5)."""
        if attempt <= self.attempt.index:
            self.words.claim(peer, attempt)  # as a rule: we were there, so there is nothing to be believed
            return None
        # Who comes late cannot know how far the others are: it believes two that agree, or the only other one there is.
        is_alone_with_it = self.book.is_alone_with(peer)
        known = self.words.followed_attempt(peer, self.attempt.index, self.suspected())
        if self.words.is_further(peer, attempt, known) and not is_alone_with_it:
            self.book.raised(peer)
        self.words.claim(peer, attempt)
        own, jump_max = self.attempt.index, self.limits.attempt_jump_max
        if attempt <= own + jump_max:
            return None  # as a rule: nobody need be asked
        is_alone = is_alone_with_it or self.may_need(peer)
        problem = self.words.jump_problem(peer, attempt, own, jump_max, is_alone=is_alone)
        return Violation(peer, "attempt_jump", problem) if problem else None

    def say(self, peer: PeerId, ready: Ready, now: Monotonic) -> None:
        """A Ready of ours or of another peer that stands here counts from now on."""
        counted = self.words.say(peer, ready)
        if counted is None or counted.contribution is None:
            return
        self.book.contributed(peer)
        self.book.pace.contributed(peer, counted.contribution.phase, now)
        self.timers.start(Mark.CONTRIBUTION, now, peer)

    def keep(self, peer: PeerId, proposal: Proposal, now: Monotonic) -> None:
        """A proposal of the attempt that we are in: to be considered, or a round goes on without us."""
        if self.is_left_out_of(proposal):
            if not self.words.is_false_alarm(peer):
                self.attempt.note_left_out(peer, now)
        elif self.attempt.promised_to is None:
            # What is promised to one proposal of an attempt cannot go to another one, nor to a second of the same peer.
            self.book.joined(peer)
            self.attempt.keep(peer, proposal, now)
            if len(self.attempt.proposals) > PROPOSALS_MAX:
                live, order = self.book.live(), self.ordered(self.attempt.proposals)
                self.attempt.keep_first(sorted(order, key=lambda one: one not in live))

    def forget_buffered(self, peers: Set[PeerId]) -> None:
        """What these said of the next height does not count: it is not theirs any more (R17.4)."""
        for peer in peers & self.buffered.keys() if self.buffered else ():
            del self.buffered[peer]

    def arrived(self) -> Mapping[PeerId, Ready]:
        """Take out what others said about this height while we still stood at the one before. Of a height that a
        recovery skipped, or of who says since that it is further on, believed or not, it is a word of before, and no
        news now."""
        if not self.buffered:
            return {}  # as a rule: this is asked at every event
        due = {peer: ready for peer, ready in self.buffered.items() if ready.round <= self.round}
        for peer in due:
            del self.buffered[peer]
        said = self.book.tips.said_height
        return {peer: ready for peer, ready in due.items() if ready.round == self.round and said(peer) <= self.round}

    def stood_still(self, seconds: float) -> None:
        """We were not running for so long (R18)."""
        self.timers.move(seconds)
        self.attempt.timers.move(seconds)
