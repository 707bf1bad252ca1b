"""Rules about what one peer owes the others: what it accepted, what it shows, what it offers, what it must not decide.

R8, R9, R11, R16 and R19 of protocol/06-rounds.md, X7 of chapter 07. Judged with what the peer was told (heard.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.exchange import facts, orders
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.wire import messages as m
from dilocoxd.wire.entry import Contribution, entry_hash
from tests.simulation.rules.heard import SLACK_S

if TYPE_CHECKING:
    from tests.simulation.rules.watch import Watch

OPEN = ("gathering", "exchanging", "voting")
AGE_MAX = 8
"""Rounds between the base of a contribution and the entry that names it (R7)."""
RECOVERS_S = 1.0
"""After the grace, and the pause after a recovery, it begins within this time: timers are looked at that often."""
Order = tuple[int, int, int, int | None]
"""(round, attempt, pass, segment or None for a whole pass)."""


class Duties:
    """Of one process life."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.offer: Contribution | None = None
        self.abandoned: Contribution | None = None
        self.voted: set[PhaseId] = set()
        """Of our phases, named by an entry that we voted for."""
        self.orders: set[Order] = set()
        """Given to the outer worker, not answered yet."""
        self.shown: tuple[RoundIndex, Attempt] | None = None
        """Where we sent ResultHashes last."""
        self.differs_at: tuple[RoundIndex, Attempt] | None = None
        """Where votes were just found to differ."""
        self.doubtful: set[PeerId] = set()
        """Were not confirmed at least once (R22)."""
        self.open_since = 0.0
        self.born_at: float | None = None
        """When the process started, by its own clock."""
        self.elsewhere: dict[PeerId, float] = {}
        """Ahead or on another branch, since when."""

    def begin(self, event: e.Event, was: str, *, is_new_exchange: bool) -> None:
        """The machine has decided; what the peer was told is noted already. Its commands come next, one by one."""
        if self.born_at is None:
            self.born_at = self.watch.now
        self._note_answer(event)
        self._note_elsewhere(was)
        self._note_difference(event, was)
        if is_new_exchange and self.orders:
            raise self.watch.broken(f"X7: an exchange begins while the worker has {self.orders}")

    def end(self) -> None:
        """All commands are judged."""
        if self.differs_at is not None and self.shown != self.differs_at:
            raise self.watch.broken(f"R11: votes differ at {self.differs_at}, and we show no results")
        self._judge_recovering()

    def _note_answer(self, event: e.Event) -> None:
        match event:
            case e.MessageReceived() | e.DeadlineReached() | e.PeersChanged():
                pass  # most of all events
            case e.PhaseOffered():
                self.offer = event.contribution
            case facts.Reduced():
                self.orders.discard((event.round, event.attempt, event.pass_index, event.segment))
            case facts.ReduceFailed():
                self.orders.discard((event.round, event.attempt, event.pass_index, event.segment))
            case facts.PassPrepared():
                self.orders.discard((event.round, event.attempt, event.pass_index, None))
            case e.RecoveryFinished() | e.RecoveryFailed():
                if self.offer is not None and event.settled_phase == self.offer.phase:
                    self.offer = None
            case _:
                pass

    def _note_elsewhere(self, was: str) -> None:
        """Who says, by its own word, that it stands ahead, or on another branch at our height. A word that was ours too
        when we heard it, before a recovery moved us, counts once its peer says it again (R9.3); one to stand on what
        was taken back never does (R29.9)."""
        heard, reverted = self.watch.heard, self.watch.node.swarm.ledger.reverted
        self.doubtful |= self.watch.status.unconfirmed
        if was not in OPEN or self.watch.state not in OPEN:
            self.open_since = heard.now
        place = heard.place
        found = [
            peer
            for peer, word in heard.word.items()
            if place is not None
            and (word.height > place[0] or (word.height == place[0] and word.head != place[1]))
            and heard.is_there(peer)
            and peer not in self.doubtful
            and self.watch.node.swarm.nodes[peer].mischief is None
            and (word.said_at >= heard.arrived_at or peer in self.elsewhere)
            and word.head not in reverted
        ]
        self.elsewhere = {peer: self.elsewhere.get(peer, heard.now) for peer in found}

    def judge_command(self, command: c.Command) -> None:
        """Before the watch has noted it."""
        match command:
            case orders.OrderReduce():
                self.orders.add((command.round, command.attempt, command.pass_index, command.segment))
            case orders.OrderPass():
                self.orders.add((command.round, command.attempt, command.pass_index, None))
            case c.Broadcast() if isinstance(command.message, m.Ready):
                self._judge_offering(command.message)
            case c.Send() if isinstance(command.message, m.Accept):
                self._judge_accepting(command.message)
            case c.Send() if isinstance(command.message, m.Propose):
                self._judge_proposing(command.message)
            case c.Send() if isinstance(command.message, m.Vote):
                self._judge_voting(command.message)
            case c.Send() if isinstance(command.message, m.ResultHashes):
                self.shown = command.message.round, command.message.attempt
            case c.PersistEntry():
                self._judge_committing(entry_hash(command.signed.entry))
            case c.ApplyEntry() if command.settle is not None:
                self._offer_ends(command.settle.phase)
            case c.AbandonContribution() if self._offer_ends(command.phase):
                self._judge_abandoning(command)
            case _:
                pass

    def _judge_accepting(self, accept: m.Accept) -> None:
        promised = self.watch.promised
        is_kept = promised is not None and promised.attempt >= accept.attempt
        self.watch.check(is_kept, f"R8: what is accepted in attempt {accept.attempt} is not on disk")

    def _judge_proposing(self, proposal: m.Propose) -> None:
        """One of somebody else is only told again (R4.4)."""
        watch, named = self.watch, {one.peer for one in proposal.contributions}
        assert self.born_at is not None
        is_ours = watch.is_proposed_now and proposal.attempt == watch.attempt
        is_new = watch.now - self.born_at < 2 * watch.node.swarm.limits.ready_repeat_s - SLACK_S
        is_hasty = is_ours and is_new and len(named) == 1 and watch.node.name not in named
        watch.check(not is_hasty, f"R6: proposes {sorted(named)} alone, and has just started")

    def _judge_voting(self, vote: m.Vote) -> None:
        """A new vote; the watch has not noted it yet."""
        watch, me = self.watch, self.watch.node.name
        if vote.vote.peer != me or not watch.is_own(vote) or watch.is_said_again(vote):
            return
        entry = watch.promised.entry if watch.promised is not None else None
        self.voted |= {one.phase for one in entry.contributions if one.peer == me} if entry is not None else set()
        if vote.attempt == watch.attempt:
            watch.check(not self.elsewhere, f"R9: votes while {sorted(self.elsewhere)} stand elsewhere")
        accepted = watch.accepted.get((me, vote.round, watch.head, vote.attempt))
        coordinator = watch.status.coordinator
        is_true = accepted is None or vote.attempt != watch.attempt or accepted == coordinator
        is_true = is_true or me in watch.node.swarm.ledger.lost_logs
        watch.check(is_true, f"R8: votes in the group of {coordinator}, but accepted that of {accepted}")

    def _judge_committing(self, entry: Digest) -> None:
        heard, round_index = self.watch.heard, self.watch.place[0] if self.watch.place is not None else RoundIndex(0)
        words = {peer: heard.word[peer] for peer in self.elsewhere}
        contrary = sorted(p for p, word in words.items() if (word.height, word.head) != (round_index + 1, entry))
        self.watch.check(not contrary, f"R19: commits while {contrary} claim another entry")

    def _judge_offering(self, ready: m.Ready) -> None:
        if self.offer is not None and self.watch.leave_at is None:
            self.watch.check(ready.contribution == self.offer, "R16: a contribution is not offered any more")

    def _offer_ends(self, phase: PhaseId) -> bool:
        """Whether it was this one that we had on offer; it is no more."""
        is_ours = self.offer is not None and self.offer.phase == phase
        if is_ours:
            self.abandoned, self.offer = self.offer, None
        return is_ours

    def _judge_abandoning(self, order: c.AbandonContribution) -> None:
        offer, chain = self.abandoned, self.watch.node.machine.chain
        assert offer is not None
        is_over = chain.last_phases.get(offer.peer, -1) >= offer.phase or offer.base_round > chain.height
        is_over = is_over or chain.height - offer.base_round > AGE_MAX
        self.watch.check(is_over, f"R16: phase {offer.phase} is given up, though the next entry may name it")
        is_told = order.is_voted or offer.phase not in self.voted
        self.watch.check(is_told, f"R16: the vote for phase {offer.phase} is forgotten")

    def _note_difference(self, event: e.Event, was: str) -> None:
        """Somebody of our group voted for another entry than we did, while we waited for votes."""
        self.differs_at = None
        exchange, mine = self.watch.exchange, self.watch.lock
        if not isinstance(event, e.MessageReceived) or not isinstance(event.message, m.Vote):
            return
        vote = event.message
        if was != "voting" or exchange is None or mine is None or not exchange.is_of(vote.round, mine.attempt):
            return
        is_theirs = vote.vote.peer == event.peer and event.peer in exchange.group
        # One that contradicts an earlier one of the same attempt does not count (R27).
        is_counted = self.watch.heard.votes.get((event.peer, vote.attempt)) == vote.entry_hash
        if is_theirs and is_counted and vote.attempt == mine.attempt and vote.entry_hash != mine.entry_hash:
            self.differs_at = vote.round, vote.attempt

    def _judge_recovering(self) -> None:
        watch, limits = self.watch, self.watch.node.swarm.limits
        if not self.elsewhere or watch.state != "gathering" or watch.woke_at:
            return
        limit = limits.behind_grace_s + limits.recovery_retry_s + RECOVERS_S + SLACK_S
        late = [p for p, since in self.elsewhere.items() if watch.now - max(since, self.open_since) > limit]
        watch.check(not late, f"R19: {late} stand elsewhere for long, and no recovery begins")
