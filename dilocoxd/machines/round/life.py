"""The life of the rounds: how an attempt and a round begin and end, with what is said and ordered then.

Holds the running height and what survives it: our own side, the book of peers, what we promised, a recovery under way.
Decides nothing; machine.py calls it for what parts decided. Source: protocol/06-rounds.md, R1 to R3, R10, R12, R15,
R16, R19.
"""

from typing import Final

from dilocoxd.ids import Attempt, Digest, Monotonic, PhaseId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.exchange.orders import CancelTransfers, OrderPass, OrderReduce
from dilocoxd.machines.peers.recovering import Recovering
from dilocoxd.machines.peers.standing import PeerBook
from dilocoxd.machines.peers.tips import Vain
from dilocoxd.machines.round.attempt import RunningAttempt
from dilocoxd.machines.round.grouping import contribution_problem
from dilocoxd.machines.round.height import Height, OwnSite, Terms
from dilocoxd.machines.round.inputs import EntryApplied, PhaseOffered, RecoveryFailed, RecoveryFinished, RoundMessage
from dilocoxd.machines.round.locks import HeldLock
from dilocoxd.machines.round.outcomes import Commit, GiveUp, Join, Recover, TakeUp, VoteOn
from dilocoxd.machines.round.outputs import (
    AbandonContribution,
    ApplyEntry,
    AttemptFailed,
    Broadcast,
    Command,
    DoubleVoteFound,
    ExtendRecovery,
    KeptPromise,
    LeaveFinished,
    PersistEntry,
    PersistPromise,
    PersistReverts,
    Promise,
    RoundFinished,
    Send,
    Settlement,
    StartRecovery,
)
from dilocoxd.machines.round.proposals import acceptance, begin
from dilocoxd.machines.round.timers import ACQUAINTED, JOINING, LAG_S, REPEAT, Mark, Timers
from dilocoxd.machines.round.voting import promise_of, signed_vote, vote_again
from dilocoxd.wire.codec import one_line
from dilocoxd.wire.entry import SignedEntry, entry_hash
from dilocoxd.wire.messages import Abandon, Accept, Accuse, Committed, Leaving

REASON_MAX: Final = 500
BLAMES_MAX: Final = 64
TIPS_KEPT: Final = 64


class RoundLife:
    """One height after the other. Methods append to `out` what is ordered, in the order in which it must be done."""

    def __init__(self, terms: Terms, chain: ChainView) -> None:
        limits = terms.limits
        self.terms: Final = terms
        self.book: Final = PeerBook(terms.site.me, limits)
        self.own: Final = OwnSite(Inbox(limits.contributors_max))  # an observer has no contribution among them
        self.timers: Final = Timers()
        """Of the process: since it started, since it leaves."""
        self.now = Monotonic(0.0)
        self.out: list[Command] = []
        self.repeat_at = Monotonic(0.0)
        """When to say again where we stand."""
        self.promised: Promise | None = None
        """What is on disk."""
        self.promises: dict[tuple[RoundIndex, Digest], Promise] = {}
        """The newest one, by (round, head): of the last TIPS_KEPT that we stood on."""
        self.recovering: Recovering | None = None
        self.height = Height(terms, self.own, self.book, chain, self.now)

    # --- orders

    def emit(self, *commands: Command) -> None:
        """Order this; what the outer worker must answer is remembered. An acceptance is on disk before it is said (R2):
        after a restart it would else be given to another proposal of the same attempt."""
        for command in commands:
            if isinstance(command, Send) and isinstance(command.message, Accept):
                self._promise()
            if isinstance(command, OrderReduce):
                self.own.orders.add((command.round, command.attempt, command.pass_index, command.segment))
            elif isinstance(command, OrderPass):
                self.own.orders.add((command.round, command.attempt, command.pass_index, None))
            self.out.append(command)

    def broadcast(self, message: RoundMessage) -> None:
        self.emit(Broadcast(message))

    def announce(self) -> None:
        """Say where we stand, and count it like everybody else's Ready (R1)."""
        height = self.height
        ready = height.ready_message()
        height.say(height.me, ready, self.now)
        for message in self.book.reverts.open(height.chain):
            self.broadcast(message)  # first: who does not know it does not believe our attempt
        self.broadcast(ready)
        self.repeat_at = Monotonic(self.now + REPEAT.seconds(self.terms.limits))

    def repeat(self) -> None:
        """Messages are lost: say again what others need of us now."""
        self.announce()
        self.emit(*vote_again(self.height), *acceptance(self.height))

    def _promise(self) -> None:
        """Put attempt and lock on disk; what follows in the batch relies on it (R2)."""
        promise = promise_of(self.height)
        if promise != self.promised:
            self.promised = promise
            self._remember(promise)
            self.emit(PersistPromise(promise))

    def _remember(self, promise: Promise) -> None:
        tip = promise.round, promise.parent
        self.promises.pop(tip, None)
        self.promises[tip] = promise
        if len(self.promises) > TIPS_KEPT:
            del self.promises[next(iter(self.promises))]

    def accuse(self) -> None:
        """Tell the operator who was found to have voted twice, and everybody, if the chain does not (R27)."""
        for evidence in self.book.double_votes.take_untold():
            self.emit(DoubleVoteFound(evidence))
            if evidence.peer not in self.height.chain.barred:
                self.broadcast(Accuse(evidence))

    def take_back(self) -> None:
        """Vote against what spoiled our state, and tell what a majority has decided: that is on disk first (R29)."""
        reverts, spoiled, false = self.book.reverts, self.own.spoiled, self.own.false.entries
        if spoiled is None and not false and not reverts.has_news:
            return  # as a rule: this is asked at every event
        said = reverts.vote(spoiled, self.height.chain, self.terms.site, false) if spoiled is not None else []
        said += reverts.vote_against(false, self.height.chain, self.terms.site)
        if news := reverts.take_news():
            self.emit(PersistReverts(tuple(reverts.decided.values())))
        for message in dict.fromkeys((*said, *news)):
            self.broadcast(message)

    def left_behind(self) -> Recover | GiveUp | None:
        """What was decided about entries of our chain, or about one that others had in our round."""
        reverts, height = self.book.reverts, self.height
        if (due := reverts.due(height.chain)) is not None:
            return Recover(f"entry {due.round} is taken back by a majority", takes_back=due)
        if height.attempt.index < reverts.first_attempt(height.round):
            return GiveUp(f"an entry of round {height.round} was taken back", is_told=False)
        return None

    # --- time

    def advance(self, now: Monotonic, wake_at: Monotonic | None) -> None:
        """It is `now`; we wanted to be woken at `wake_at`.

        If we were not running then (stopped, swapped out, overloaded), others cannot be blamed for what we did not hear
        meanwhile: every moment from which somebody's time counts moves by that much, and time-outs end at least `LAG_S`
        from now, or the first message that we read would be judged without the others (R18). What is not moved is said
        in timers.py."""
        self.out = []
        self.now = Monotonic(max(now, self.now))
        if wake_at is None or self.now - wake_at < LAG_S:
            return
        lag = self.now - wake_at + LAG_S
        self.timers.move(lag)
        self.height.stood_still(lag)
        self.book.stood_still(lag)

    # --- an attempt

    def enter(self, index: Attempt, since: Monotonic | None = None) -> None:
        """Promise never to vote below this attempt again, and say so. `since`: what was waited in it before counts."""
        index = max(index, self.book.reverts.first_attempt(self.height.round))
        self.height.attempt = RunningAttempt(index, self.now if since is None else since)
        if (lock := self.height.lock) is not None and self.book.reverts.is_void(lock.entry_hash):
            self.height.lock = None  # void, whoever else is locked on it (R29)
        if index > 0:
            # At a new height what observers still get from the round before goes on until RESULT is needed again.
            self.emit(CancelTransfers(self.height.round, index))
            self._promise()
        self.announce()

    def join(self, found: Join) -> None:
        """Go where others are (R5), with the proposal that showed it."""
        self.enter(found.attempt)
        if found.proposal is not None:
            self.height.keep(*found.proposal, self.now)

    def give_up(self, failed: GiveUp) -> None:
        """Go to the next attempt that anybody is in (R12)."""
        height, index = self.height, self.height.attempt.index
        self.emit(*failed.orders)
        blamed = tuple(sorted(set(failed.blames) - {height.me}))[:BLAMES_MAX]
        height.failures.append(failed.reason)
        self.emit(AttemptFailed(height.round, index, failed.reason))
        self.book.conflicts.blame(height.me, blamed, height.round, index)
        if failed.is_told:
            self.broadcast(Abandon(height.round, index, one_line(failed.reason)[:REASON_MAX], blamed))
        self.enter(height.latest_attempt(Attempt(index + 1)))

    def take_up(self, taken: TakeUp) -> None:
        """Begin the exchange of this proposal."""
        self.emit(*taken.orders)
        self.emit(*begin(self.height, taken, self.now))

    def vote(self, found: VoteOn) -> None:
        """Wait for the voters of this entry; if we are one of them: lock, persist, then vote (R3)."""
        height, own, voted_on = self.height, self.own, found.voted_on
        self.emit(*found.orders)
        height.attempt.vote_on(voted_on, self.now)
        if height.me not in voted_on.voters:
            return
        height.lock = voted_on
        if own.offer is not None and own.offer.contribution in voted_on.entry.contributions:
            own.voted_phase = own.offer.contribution.phase
        self._promise()
        own.vote = signed_vote(height, voted_on)
        height.votes.add(own.vote)
        self.emit(*vote_again(height))

    # --- a round

    def start(self, kept: KeptPromise | None) -> None:
        """Stand at the tip that was loaded; behind an attempt that was promised before we were restarted (R2)."""
        self.timers.start(Mark.PROCESS, self.now)
        tip = self.height.chain
        if kept is not None:
            self._remember(kept.promise)
        is_of_this_round = kept is not None and (kept.promise.round, kept.promise.parent) == (tip.height, tip.head)
        self.arrive(tip, kept if is_of_this_round else None)

    def arrive(self, chain: ChainView, kept: KeptPromise | None = None, misread: PhaseId | None = None) -> None:
        """A new tip: drop a contribution that can never be used (R16), say where we are. `kept`: what we promised for
        this round before we were restarted; the first word carries it (R3). `misread`: see RecoveryFinished."""
        height = self.height = Height(self.terms, self.own, self.book, chain, self.now, self.height)
        self.book.reach(chain)
        offer = self.own.offer
        problem = contribution_problem(offer.contribution, chain, self.terms.limits) if offer is not None else ""
        if offer is not None and offer.contribution.phase == misread:
            problem = problem or "this branch would take other samples for it than it has read"
        if offer is not None and problem:
            height.failures.append(f"our contribution is not offered any more: {problem}")
            phase = offer.contribution.phase
            is_voted = phase == self.own.voted_phase
            self.emit(AbandonContribution(phase, is_voted))
            self.own.offer = None
        for message in self.book.reverts.recent(chain):
            self.broadcast(message)
        for evidence in height.evidence():
            self.broadcast(Accuse(evidence))  # until an entry holds it: the first time it may have been lost
        # A recovery may bring us back to where we voted before: what we promised there still holds (R2), the lock
        # included: without it our Ready would prove that nobody committed that entry (R13). RESULT is of another one.
        promise = kept.promise if kept is not None else self.promises.get((chain.height, chain.head))
        if promise is None:
            self.enter(Attempt(0))
            return
        if kept is not None:
            self.promised = promise
        if promise.entry is not None:
            digest, held = entry_hash(promise.entry), kept is not None and kept.results_held
            height.lock = HeldLock(promise.voted_attempt, promise.entry, digest, promise.voters, held, promise.offers)
        self.enter(Attempt(promise.attempt + 1))

    def offer(self, offer: PhaseOffered, *, is_told: bool) -> None:
        """Our contribution for the next entries; settled at once if no entry can name it. `is_told`: say it now."""
        assert self.own.offer is None, "a contribution is in flight already"
        assert len(offer.segment_hashes) == self.terms.shape.num_segments, "segments do not fit the layout"
        if offer.is_misread or contribution_problem(offer.contribution, self.height.chain, self.terms.limits):
            self.emit(AbandonContribution(offer.contribution.phase, is_voted=False))
            return
        self.own.offer = offer
        if is_told:
            self.announce()

    def commit(self, found: Commit) -> None:
        """Everybody that had to has agreed: put the entry on disk (R10)."""
        self.emit(*found.orders)
        self.height.attempt.voted_on = found.held
        self.height.times.voted_at = self.now
        self.emit(PersistEntry(SignedEntry(found.held.entry, found.held.offers, found.votes)))

    def apply(self) -> None:
        """The entry cannot be lost any more: tell everybody, settle, apply."""
        height, own, voted_on = self.height, self.own, self.height.attempt.voted_on
        assert voted_on is not None, "persisted an entry that nobody committed"
        height.times.persisted_at = self.now
        self.broadcast(Committed(height.round, voted_on.entry_hash))
        settle: Settlement | None = None
        if own.offer is not None and own.offer.contribution in voted_on.entry.contributions:
            settle = Settlement(own.offer.contribution.phase, height.owned)
            own.offer = None
            if self.terms.shape.is_gathered:
                # Settling empties OUTBOX, from which observers may still read; they can have the result from anybody.
                self.emit(CancelTransfers(height.round, Attempt(height.attempt.index + 1)))
        self.emit(ApplyEntry(height.round, voted_on.entry.lowrank_r, settle))

    def finish(self, applied: EntryApplied) -> None:
        """The entry is applied: report the round, stand at the next one."""
        height, voted_on = self.height, self.height.attempt.voted_on
        assert voted_on is not None, "applied an entry that nobody committed"
        self.emit(RoundFinished(height.summary(voted_on, self.now)))
        self.arrive(height.chain.extended(voted_on.entry, applied.state_digest, applied.planned))

    def say_goodbye(self, reason: str, to_driver: str) -> None:
        """We take part no more."""
        self.broadcast(Leaving(self.height.round, one_line(reason)[:REASON_MAX]))
        self.emit(LeaveFinished(to_driver))

    # --- a recovery

    def recover(self, found: Recover, *, is_gathering: bool) -> int:
        """Stop taking part until recovery has compared our chain with those of others; returns how many it asks."""
        height, tips = self.height, self.book.tips
        self.emit(*found.orders)
        # Nobody shall propose us, or wait for what we owe, meanwhile.
        self.broadcast(
            Abandon(height.round, height.attempt.index, one_line(f"catching up: {found.reason}")[:REASON_MAX], ())
        )
        is_uninvolved = is_gathering and height.attempt.promised_to is None
        waited_s = self.now - height.attempt.since if is_uninvolved else None
        if found.is_rebuild:
            tips.rebuilt_head = height.chain.head
        asked = tips.claims
        peers = sorted({*asked, *found.peers}) or sorted(self.book.live() - {height.me})
        patience_s = {} if found.peers else tips.patience_s(height.chain)
        # While most are on our chain it shall end soon, whoever else claims something.
        takes_more = not patience_s
        self.recovering = Recovering(asked, frozenset(peers), takes_more, waited_s, found.takes_back)
        best = max([claim.height for claim in asked.values()], default=height.round)
        height.attempt.stop()
        self.book.awaits((), self.now)
        back, reverts = found.takes_back, self.book.reverts
        if back is not None:
            reverts.tried(back)
        self.emit(
            StartRecovery(
                peers=tuple(peers),
                height=best,
                reason=found.reason,
                is_rebuild=found.is_rebuild,
                in_flight=height.in_flight(),
                takes_back=back.round if back is not None else None,
                reverted=frozenset(reverts.decided),
                patience_s=patience_s,
            )
        )
        return len(peers)

    def extend_recovery(self) -> None:
        """Of those it began with each may give its branch as slowly as it likes: others are asked, too (R22.7)."""
        added = self.recovering.added(self.book.tips.claims) if self.recovering is not None else ()
        if added:
            self.emit(ExtendRecovery(added))

    def resume(self, found: RecoveryFinished | RecoveryFailed) -> None:
        """Go on where recovery has put us; where we were, if it has changed nothing."""
        recovering, tips, height = self.recovering, self.book.tips, self.height
        assert recovering is not None, "a recovery ended that was not begun"
        self.recovering = None
        if self.own.offer is not None and found.settled_phase == self.own.offer.contribution.phase:
            self.own.offer = None
        if isinstance(found, RecoveryFailed):
            tips.failed(found.unconfirmed, found.unavailable, self.now, found.overdue)
            self._come_back(recovering)
            return
        self.book.double_votes.read(found.chain, found.newest, self.terms.site.keys)
        is_same = found.chain.head == height.chain.head
        if not is_same:
            self.own.spoiled = None  # of another state
            if (back := recovering.takes_back) is not None:
                left = [height.chain.hash_at(number) for number in range(back.round, height.round)]
                self.book.reverts.bury([head for head in left if head is not None])
            self.arrive(found.chain, misread=found.misread)
        asked = recovering.looked_at(found.added, found.unasked)
        vain = Vain(found.unavailable, found.in_part, found.overdue)
        tips.finished(found.chain, asked, self.now, vain, has_moved=not is_same)
        if is_same:
            height.chain = found.chain
            self._come_back(recovering)

    def _come_back(self, recovering: Recovering) -> None:
        """Recovery has changed nothing: back to the attempt that we left, if we were not at work in it.

        What was waited there before counts: claims that come to nothing would else hold a round up while they come. But
        everybody gets the time to say again what we did not hear meanwhile.
        """
        index, limits = self.height.attempt.index, self.terms.limits
        if recovering.waited_s is None:
            self.enter(Attempt(index + 1))
            return
        counted = max(0.0, JOINING.seconds(limits) - ACQUAINTED.seconds(limits))
        self.enter(index, Monotonic(self.now - min(recovering.waited_s, counted)))
