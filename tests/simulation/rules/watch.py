"""Watches one honest peer from outside and asserts the rules of protocol/06-rounds.md that can be seen broken there.

Sees what the driver sees: events, commands, `status`, `chain`. Time is the peer's clock without what it stood still
(R18). Whatever cannot be judged from outside (what a liar provokes, what only recovery knows) is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.round import inputs as e, outputs as c
from dilocoxd.machines.round.grouping import coordinator_order, missing_majority
from dilocoxd.wire import messages as m
from dilocoxd.wire.entry import entry_hash
from tests.simulation.ledger import Broken
from tests.simulation.peer.disk import RUN_ID
from tests.simulation.rules.commands import is_unlocked, works_in
from tests.simulation.rules.duties import Duties
from tests.simulation.rules.heard import SLACK_S, Heard, named_in

if TYPE_CHECKING:
    from tests.simulation.peer.node import Node

OPEN = ("gathering", "exchanging", "voting")
AWAKE_S = 0.1
"""So long after waking nothing may be decided by time alone: what the pause did not move is over at once."""
Votes = dict[tuple[PeerId, RoundIndex, Digest, Attempt], bytes]
"""(voter, round, parent, attempt) -> entry: of all lives of a peer (R3)."""
Accepts = dict[tuple[PeerId, RoundIndex, Digest, Attempt], PeerId]
"""(observer, round, parent, attempt) -> whose proposal it accepted: of all lives of a peer (R8)."""


class Watch:
    """One process life of one peer."""

    def __init__(self, node: Node, said: Votes, accepted: Accepts) -> None:
        self.node = node
        self.said = said
        self.accepted = accepted
        self.heard = Heard(node.name, node.swarm.limits, lambda peer: node.machine.height.may_need(peer))
        self.still_s = 0.0
        self.duties = Duties(self)
        self.leave_at: float | None = None
        self.last_ready_at: float | None = None
        self.status: c.RoundStatus = node.machine.status
        """After the newest event: it changes in no other way, and is asked several times for each."""
        self._forget_round()
        self._in_attempt(Attempt(0))

    def _at_new_place(self, place: tuple[RoundIndex, Digest]) -> None:
        self.heard.at_new_place(place)
        self._forget_round()

    def _forget_round(self) -> None:
        self.lock: m.Vote | None = None
        self.void: bytes | None = None
        """The entry of a lock of ours that was proved void when we took part in another one (R13)."""
        self.promised: c.Promise | None = None
        self.exchange: Exchange | None = None
        self.becomes_void = False

    def _in_attempt(self, attempt: Attempt) -> None:
        self.heard.in_attempt(attempt)
        self.woke_at = 0.0  # what is timed from here on began after waking
        self.voting_at: float | None = None
        self.has_proposed = self.is_proposed_now = self.is_resumed = False

    @property
    def now(self) -> float:
        return self.heard.now

    @property
    def place(self) -> tuple[RoundIndex, Digest] | None:
        return self.heard.place

    @property
    def head(self) -> Digest:
        """Of our chain."""
        return self.node.machine.chain.head

    @property
    def attempt(self) -> Attempt:
        return self.heard.attempt

    # --- what the driver tells

    def woke(self, seconds: float) -> None:
        """It stood still for so long, on its own clock."""
        # What it slept before it wanted to be woken is running time for the machine, and less than a second is no lag.
        is_noticed = self.state in OPEN and seconds > self.node.swarm.limits.ready_repeat_s + 2.0
        self.still_s += max(0.0, seconds - self.node.swarm.limits.ready_repeat_s - 1.0)
        self.heard.now = self.node.clock() - self.still_s
        self.last_ready_at = None
        self.duties.open_since = self.heard.now  # what was claimed before counts from here
        if is_noticed:
            self.woke_at = self.now

    def before(self, event: e.Event, now: float) -> None:
        """The machine handles it next. `now`: by the peer's clock."""
        self.heard.now = now - self.still_s
        self.status_before = self.status
        self.state = self.status.state
        if isinstance(event, e.LeaveRequested) and self.leave_at is None:
            self.leave_at = self.now
        self.is_news = self.heard.hear(event, is_catching_up=self.state == "catching_up")

    def after(self, event: e.Event, commands: Sequence[c.Command]) -> None:
        """The machine has decided; nothing is carried out yet."""
        machine, heard = self.node.machine, self.heard
        status = self.status = machine.status
        was, before = self.state, (heard.place, heard.attempt)
        if self.node.mischief is None:
            self._judge_answers(event, commands)
        place = (status.round, machine.chain.head)
        if (place, status.attempt) != before:
            heard.note_silent(is_over=self._waited(), is_open=was in OPEN)
            if place != before[0]:
                self._at_new_place(place)
            self._in_attempt(status.attempt)
        if isinstance(event, e.RecoveryFailed | e.RecoveryFinished) and before == (heard.place, heard.attempt):
            self.is_resumed = True  # what we had waited in this attempt before counts (R12)
        self.state = status.state
        self.becomes_void = self._is_proved_void(event, commands)
        exchange = machine.height.attempt.exchange
        is_new_exchange = exchange is not None and exchange is not self.exchange
        if self.state == "voting" and (was != "voting" or self.voting_at is None):
            self.voting_at = self.now
        if self.node.mischief is None:
            self.duties.begin(event, was, is_new_exchange=is_new_exchange)
            self._judge(event, commands)
            self.duties.end()
        if self.becomes_void and self.lock is not None:
            self.lock, self.void = None, self.lock.entry_hash
        self.exchange = exchange
        heard.note_silent(is_over=self._waited(), is_open=self.state in OPEN)
        self._note_unwilling()

    def carried_out(self, command: c.Command) -> None:
        """It is done: what another life of this peer must keep."""
        if isinstance(command, c.Send) and isinstance(command.message, m.Accept) and self.node.mischief is None:
            accept = command.message
            key = (self.node.name, accept.round, self.head, accept.attempt)
            is_true = self.accepted.setdefault(key, accept.coordinator) == accept.coordinator
            is_true = is_true or self.node.name in self.node.swarm.ledger.lost_logs
            self.check(is_true, f"R8: accepts a second proposal in attempt {accept.attempt}")
        if isinstance(command, c.Send) and isinstance(command.message, m.Vote) and self.is_own(command.message):
            vote = command.message
            assert self.place is not None
            known = self.said.setdefault((self.node.name, vote.round, self.place[1], vote.attempt), vote.entry_hash)
            is_kept = known == vote.entry_hash or self.node.name in self.node.swarm.ledger.lost_logs
            self.check(is_kept, f"R3: a second vote in attempt {vote.attempt} of round {vote.round}")

    def check(self, is_kept: bool, text: str) -> None:
        """Raises Broken, with our name."""
        if not is_kept:
            raise self.broken(text)

    def broken(self, text: str) -> Broken:
        """The same for what is asked at every event: its text is made only when it is needed."""
        return Broken(f"{text} ({self.node.name})")

    def is_own(self, vote: m.Vote) -> bool:
        """For the round that we are in."""
        return vote.vote.peer == self.node.name and self.place is not None and vote.round == self.place[0]

    def _is_excused(self, peer: PeerId) -> bool:
        """What keeps the machine from waiting for it may be known to the machine only."""
        return self.heard.is_suspected(peer) or peer in self.status.unconfirmed or self.heard.is_said_ahead(peer)

    def _waited(self) -> bool:
        """For the progress time-out, in this attempt."""
        waited_s = self.heard.now - self.heard.entered_at
        return self.is_resumed or waited_s >= self.node.swarm.limits.progress_timeout_s - SLACK_S

    def _is_proved_void(self, event: e.Event, commands: Sequence[c.Command]) -> bool:
        """We take part in a new group, perhaps for the length of this one event, and a voter that is ready there
        without our lock has proved it void."""
        if self.lock is None or self.promised is None:
            return False
        height, before = self.node.machine.height, self.exchange
        exchange, index = height.attempt.exchange, height.chain.height
        attempts = {attempt for one in commands if (attempt := works_in(one)) is not None}
        taken_up = {attempt for attempt in attempts if before is None or not before.is_of(index, attempt)}
        taken_up |= {self.attempt} if exchange is not None and exchange is not before else set()
        if isinstance(event, e.MessageReceived) and isinstance(event.message, m.Propose) and is_unlocked(commands):
            taken_up.add(event.message.attempt)  # begun and failed within the event, before any order
        said = [self.heard.ready[p] for p in self.promised.voters if p != self.node.name and p in self.heard.ready]
        locks = [ready.lock for ready in said if ready.attempt in taken_up and ready.attempt > self.lock.attempt]
        return any(lock is None or lock.entry_hash != self.lock.entry_hash for lock in locks)

    # --- rules

    def _judge_answers(self, event: e.Event, commands: Sequence[c.Command]) -> None:
        """R15, before our place may have changed."""
        if not isinstance(event, e.MessageReceived) or not isinstance(event.message, m.Ready) or self.place is None:
            return
        if event.message.round < self.place[0] and self.state not in ("failed", "left"):
            told = [x.message for x in commands if isinstance(x, c.Send) and x.peer == event.peer]
            is_told = any(isinstance(x, m.Committed) and x.entry_hash == self.place[1] for x in told)
            self.check(is_told, f"R15: {event.peer} is in round {event.message.round} and not told where we are")

    def _judge(self, event: e.Event, commands: Sequence[c.Command]) -> None:
        is_led_by_us = self.status.coordinator == self.node.name
        self.is_proposed_now = is_led_by_us and not self.has_proposed
        self.has_proposed = is_led_by_us
        for command in commands:
            if isinstance(command, c.Send) and isinstance(command.message, m.Propose | m.ProposeCommit):
                self.heard.named |= named_in(command.message)
            self.duties.judge_command(command)
            self._judge_command(command)
        self._judge_joining(event)
        if self.woke_at and not self.is_news and self.now - self.woke_at < AWAKE_S:
            late = [x for x in commands if isinstance(x, c.AttemptFailed) or self._is_judgement(x)]
            self.check(not late, f"R18: stood still, and on waking, with nothing heard: {str(late[:1])[:80]}")
        if self.state in OPEN and self.last_ready_at is not None:
            pause = self.heard.now - self.last_ready_at
            if pause > self.node.swarm.limits.ready_repeat_s + SLACK_S:
                raise self.broken(f"R1: no Ready for {pause:.2f} s")
        if self.state not in OPEN:
            self.last_ready_at = None

    def _is_judgement(self, command: c.Command) -> bool:
        """A proposal that is not only said again, or blame."""
        if isinstance(command, c.Send) and isinstance(command.message, m.Propose | m.ProposeCommit):
            return self.is_proposed_now
        is_abandon = isinstance(command, c.Broadcast) and isinstance(command.message, m.Abandon)
        return is_abandon and bool(command.message.blames)

    def _judge_command(self, command: c.Command) -> None:
        match command:
            case c.PersistPromise():
                self._judge_promise(command.promise)
            case c.PersistReverts():
                self._note_reverts(command)
            case c.Broadcast() if isinstance(command.message, m.Ready):
                self._judge_ready(command.message)
            case c.Broadcast() if isinstance(command.message, m.Abandon):
                self._judge_abandon(command.message)
            case c.Send() if isinstance(command.message, m.Vote) and self.is_own(command.message):
                self._judge_vote(command.message)
            case c.Send() if isinstance(command.message, m.Propose | m.ProposeCommit):
                self._judge_proposal(command.message)
            case c.PersistEntry():
                self._judge_commit(command)
            case c.LeaveFinished():
                self._judge_leaving(command)
            case _:
                pass

    def _note_reverts(self, command: c.PersistReverts) -> None:
        if self.lock is not None and self.lock.entry_hash in {message.entry_hash for message in command.taken_back}:
            self.lock, self.void = None, self.lock.entry_hash  # R29: void, like one that a voter disproved

    def _judge_promise(self, promise: c.Promise) -> None:
        self.promised = promise
        if promise.entry is not None and self.place == (promise.round, promise.parent):
            self.heard.votes[self.node.name, promise.voted_attempt] = entry_hash(promise.entry)

    def _judge_ready(self, ready: m.Ready) -> None:
        self.last_ready_at = self.now
        if self.place != (ready.round, ready.parent):
            return
        self.heard.ready[self.node.name] = ready
        if ready.attempt > 0:
            is_kept = self.promised is not None and self.promised.attempt >= ready.attempt
            self.check(is_kept, f"R2: Ready in attempt {ready.attempt} is not on disk")
        if self.lock is not None:
            is_carried = ready.lock is not None and ready.lock.entry_hash == self.lock.entry_hash
            is_over = self.becomes_void and ready.lock is None
            self.check(is_carried or is_over, f"R3: Ready without our lock of attempt {self.lock.attempt}")
        is_dropped = ready.lock is None or ready.lock.entry_hash != self.void
        self.check(is_dropped, "R13: a lock that was proved void is carried on")

    def _judge_abandon(self, abandon: m.Abandon) -> None:
        before = self.status_before
        strangers = set(abandon.blames).difference(before.group, before.observers, self.heard.named)
        self.check(not strangers, f"R12: blames {strangers}, who had no part in attempt {abandon.attempt}")
        self.heard.blame(abandon.blames, abandon.round)

    def _judge_vote(self, vote: m.Vote) -> None:
        if self.is_said_again(vote):
            return
        own = self.heard.ready.get(self.node.name)
        self.check(own is None or own.attempt <= vote.attempt, f"R2: vote in attempt {vote.attempt} after a promise")
        entry = self.promised.entry if self.promised is not None else None
        is_kept = entry is not None and entry_hash(entry) == vote.entry_hash
        self.check(is_kept, f"R2: the vote of attempt {vote.attempt} is not on disk")
        self.lock, self.void, self.becomes_void = vote, None, False

    def is_said_again(self, vote: m.Vote) -> bool:
        """A vote of ours that was known before."""
        return self.lock is not None and vote.attempt <= self.lock.attempt

    def _judge_proposal(self, message: m.Propose | m.ProposeCommit) -> None:
        """Ours, when we make it; later it is only said again."""
        status = self.status
        is_present = (message.round, message.attempt) == (status.round, self.attempt)
        if not self.is_proposed_now or not is_present:
            return
        named = named_in(message)
        here = [peer for peer in self.heard.here() if not self._is_excused(peer)]
        for peer in here:
            is_absent = peer in self.heard.silent or self.heard.left.get(peer) == self.attempt
            is_awaited = not is_absent and not self.heard.has_joined(peer) and not self.heard.has_had_its_time(peer)
            self.check(
                peer in named or not is_awaited or self._waited(),
                f"R6: {peer} is left out {self.now - self.heard.entered_at:.2f} s into attempt {self.attempt}",
            )
        ready = [peer for peer in here if self.heard.has_joined(peer)]
        order = coordinator_order(RUN_ID, message.round, message.attempt, [self.node.name, *ready])
        order.sort(key=self.node.machine.chain.is_on_probation)
        self.check(order[0] == self.node.name, f"R4: proposes although {order[0]} comes first")
        self._judge_locks(message)
        if isinstance(message, m.Propose):
            self._judge_group(message)

    def _judge_group(self, message: m.Propose) -> None:
        peers = [contribution.peer for contribution in message.contributions]
        self.check(peers == sorted(set(peers)), "R7: contributors are not sorted")
        limits, chain = self.node.swarm.limits, self.node.machine.chain
        left_out = chain.left_out_by(message.evidence)
        is_kept = not left_out.intersection(peers) or left_out.issuperset(peers)
        self.check(is_kept, f"R27: {sorted(left_out)} voted twice and are in a group with others")
        if limits.has_majority_quorum:
            problem = missing_majority(frozenset(peers), chain.electorate(message.evidence))
            self.check(not problem, f"R14: {problem}")
        else:
            lasting = [pair for pair, last in self.heard.blames.items() if last >= message.round]
            at_odds = [pair for pair in lasting if set(pair) <= set(peers)]
            self.check(not at_odds, f"R12: {at_odds} are in one group")

    def _judge_locks(self, message: m.Propose | m.ProposeCommit) -> None:
        """R13, with what we and others have said in this attempt."""
        ready = {peer: said for peer, said in self.heard.ready.items() if said.attempt == self.attempt}
        latest = sorted([said.lock for said in ready.values() if said.lock is not None], key=lambda lock: lock.attempt)
        for lock in {one.entry_hash: one for one in latest}.values():  # of each entry one
            present = [peer for peer in lock.voters if peer in ready]
            held = [said for peer in present if (said := ready[peer].lock) and said.entry_hash == lock.entry_hash]
            if len(held) < len(present) or all(map(self.node.machine.chain.is_on_probation, present)):
                continue
            absent = [p for p in lock.voters if p not in ready and self.heard.is_live(p) and not self._is_excused(p)]
            may_fork = not self.node.swarm.limits.has_majority_quorum
            is_free = not absent and may_fork and not any(one.results_held for one in held)
            is_finished = isinstance(message, m.ProposeCommit) and not absent
            self.check(is_free or is_finished, f"R13: a lock of attempt {lock.attempt} stands, {absent} may say")

    def _judge_commit(self, command: c.PersistEntry) -> None:
        digest, voters = entry_hash(command.signed.entry), [vote.peer for vote in command.signed.votes]
        attempts = {attempt for (peer, attempt), said in self.heard.votes.items() if said == digest}
        full = [a for a in attempts if all(self.heard.votes.get((peer, a)) == digest for peer in voters)]
        self.check(bool(full), "R10: commits without the votes of one attempt")
        if self.attempt not in full or self.voting_at is None:
            return
        is_waived = self.heard.unwilling | self.heard.silent
        for peer in filter(self.heard.is_live, self._unaccepted()):
            if self.heard.is_suspected(peer):
                continue
            self.check(peer in is_waived or self._has_voted_long() or self.is_resumed, f"R10: {peer} has not accepted")

    def _unaccepted(self) -> list[PeerId]:
        """Observers of our attempt that have not accepted it."""
        status, accepts = self.status, self.heard.accepts
        others = [peer for peer in status.observers if peer != self.node.name]
        return [peer for peer in others if accepts.get((peer, self.attempt)) != status.coordinator]

    def _has_voted_long(self) -> bool:
        """For the vote time-out, in this attempt."""
        limits = self.node.swarm.limits
        return self.voting_at is not None and self.now - self.voting_at >= limits.vote_timeout_s - SLACK_S

    def _note_unwilling(self) -> None:
        if self._has_voted_long():
            self.heard.unwilling |= set(self._unaccepted())

    def _judge_leaving(self, command: c.LeaveFinished) -> None:
        if self.leave_at is None or command.reason.startswith("store") or self.place is None:
            return
        is_late = self.now - self.leave_at >= self.node.swarm.limits.leave_timeout_s - SLACK_S
        others = self.heard.live()
        said = [word for p in others if (word := self.heard.word.get(p)) is not None]
        above = [one for one in (*said, *(self.heard.views[p] for p in others)) if one.height > self.place[0]]
        heads = [one.head for one in (*said, *(self.heard.views[p] for p in others))]
        is_over = self.place[0] == 0 or not others or bool(above) or self.place[1] in heads
        self.check(is_late or is_over, "R17: leaves with an entry that nobody else has")

    def _judge_joining(self, event: e.Event) -> None:
        """R5."""
        if not isinstance(event, e.MessageReceived) or self.state != "gathering":
            return
        peer, ready = event.peer, event.message
        if not isinstance(ready, m.Ready) or self.attempt >= ready.attempt:
            return
        if self.place != (ready.round, ready.parent) or not self.heard.is_live(peer) or self._is_excused(peer):
            return
        is_believed = self.heard.is_believed(peer, ready.attempt)
        is_free = not is_believed or self.node.swarm.nodes[peer].mischief is not None
        self.check(is_free, f"R5: stays in attempt {self.attempt} while {peer} is in {ready.attempt}")
