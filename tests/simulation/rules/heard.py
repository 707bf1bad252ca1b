"""What one honest peer was told and has seen, as far as rules are judged by it: noted from outside, event by event.

Time is the peer's clock without what it stood still (R18).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dilocoxd.ids import Attempt, Digest, PeerId, RoundIndex
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.round import inputs as e
from dilocoxd.machines.round.grouping import members
from dilocoxd.wire import messages as m
from dilocoxd.wire.entry import VoteFor
from tests.simulation.peer.signing import keys_of

KEYS = keys_of("")
"""To check what others signed."""
SUSPICION_MAX, CONFLICT_ROUNDS = 3, 3
SLACK_S = 0.05
"""Rounding of clocks, and the next look at a timer."""


def _is_genuine(peer: PeerId, message: m.Vote) -> bool:
    """Its own, and signed by it (R26)."""
    what = VoteFor(message.round, message.vote.attempt, message.parent, message.entry_hash)
    return message.vote.peer == peer and KEYS.is_genuine(message.vote, what)


class Word(NamedTuple):
    """Where a peer says it stands."""

    height: int
    head: bytes
    said_at: float


class Heard:
    """Of one process life."""

    def __init__(self, me: PeerId, limits: RoundLimits, may_need: Callable[[PeerId], bool]) -> None:
        """`may_need`: whether nothing may go on without this peer (R5.5)."""
        self.me = me
        self.limits = limits
        self.may_need = may_need
        self.now = 0.0
        self.views: dict[PeerId, e.PeerView] = {}
        self.departed: set[PeerId] = set()
        self.suspicion: dict[PeerId, int] = {}
        self.blames: dict[tuple[PeerId, PeerId], int] = {}
        self.silent: set[PeerId] = set()
        """Did not join an attempt for the progress time-out, and have not answered since (R6)."""
        self.awaited: dict[PeerId, float] = {}
        """Have joined no attempt of the round, or none since they answered last, since when (R6)."""
        self.unwilling: set[PeerId] = set()
        """Did not accept for the vote time-out, and have not accepted since (R10)."""
        self.word: dict[PeerId, Word] = {}
        self.early: dict[PeerId, m.Ready] = {}
        """Ready of the next height: it counts once we stand there."""
        self.place: tuple[RoundIndex, Digest] | None = None
        self.attempt = Attempt(0)
        self.arrived_at = 0.0
        self.is_catching_up = False
        self._forget_round()

    def at_new_place(self, place: tuple[RoundIndex, Digest]) -> None:
        """What was said about the round before counts no more, and what came early counts now."""
        self.place, self.attempt, self.arrived_at = place, Attempt(0), self.now
        self._forget_round()
        due = {peer: ready for peer, ready in self.early.items() if ready.round <= place[0]}
        for peer, ready in sorted(due.items()):
            del self.early[peer]
            word = self.word.get(peer)
            is_further = word is not None and word.height > place[0]  # it says so since: that was a word of before
            if place == (ready.round, ready.parent) and not is_further:
                self._listen_ready(peer, ready)

    def in_attempt(self, attempt: Attempt) -> None:
        """We are in it from now on."""
        self.attempt, self.entered_at = attempt, self.now

    def _forget_round(self) -> None:
        self.ready: dict[PeerId, m.Ready] = {}
        self.claims: dict[PeerId, int] = {}
        self.left: dict[PeerId, Attempt] = {}
        self.named: set[PeerId] = set()
        self.votes: dict[tuple[PeerId, Attempt], bytes] = {}
        self.accepts: dict[tuple[PeerId, Attempt], PeerId] = {}
        self.suspicion = {peer: count // 2 for peer, count in self.suspicion.items()}
        self.awaited = {}
        self.entered_at = self.now

    # --- what comes

    def hear(self, event: e.Event, *, is_catching_up: bool = False) -> bool:
        """Remember; whether it says anything new."""
        self.is_catching_up = is_catching_up
        match event:
            case e.PeersChanged():
                return self._see(event)
            case e.MessageReceived():
                return self._listen(event.peer, event.message)
            case e.DeadlineReached():
                return False
            case _:
                return True

    def _see(self, event: e.PeersChanged) -> bool:
        before, self.views = self.views, {view.peer: view for view in event.peers}
        self.departed -= {p for p, view in self.views.items() if view.is_live and p in before and not before[p].is_live}
        self.word = {peer: word for peer, word in self.word.items() if self._still_counts(peer, word)}
        self.early = {p: said for p, said in self.early.items() if p not in self.views or self.views[p].is_live}
        self.awaited = {p: since for p, since in self.awaited.items() if p in self.views and self.views[p].is_live}
        return before != self.views

    def _still_counts(self, peer: PeerId, word: Word) -> bool:
        """Of who is not live nothing does. Whom membership does not know claims nothing for long (R19.6), but it may be
        told that it has what we have (R17)."""
        if peer in self.views:
            return self.views[peer].is_live
        is_claim = self.place is not None and word.height >= self.place[0] and (word.height, word.head) != self.place
        return not is_claim or self._is_recent(word)

    def _is_recent(self, word: Word) -> bool:
        return self.now - word.said_at < self.limits.progress_timeout_s - SLACK_S

    def _listen(self, peer: PeerId, message: e.RoundMessage) -> bool:
        here = self.place
        if isinstance(message, m.Ready):
            self.departed.discard(peer)
            is_counted = self._stands(peer, message.round, message.parent)
            if here != (message.round, message.parent):
                if is_counted:
                    self._forgive(peer)  # it answers, from elsewhere
                self.ready.pop(peer, None)
                if here is not None and message.round == here[0] + 1:
                    self._keep_early(peer, message)
                return True
            return self._listen_ready(peer, message)
        if isinstance(message, m.Committed):
            self._stands(peer, message.round + 1, message.entry_hash)
        elif isinstance(message, m.Leaving):
            self.departed.add(peer)
            self.early.pop(peer, None)
        elif isinstance(message, m.Accuse | m.TakeBack):
            return False
        elif here is not None and message.round == here[0]:
            self._listen_at_work(peer, message)
        return True

    def _keep_early(self, peer: PeerId, ready: m.Ready) -> None:
        """Of those whom membership does not know, only as many + 1 (peer standing, `buffered`)."""
        num_unknown = len(self.early.keys() - self.views.keys())
        if peer in self.views or peer in self.early or num_unknown <= len(self.views):
            self.early[peer] = ready

    def _stands(self, peer: PeerId, height: int, head: bytes) -> bool:
        """An older message that was overtaken takes back nothing (R22); whether this counts."""
        known = self.word.get(peer)
        is_recent = known is not None and self.now - known.said_at < self.limits.behind_grace_s
        if known is not None and height < known.height and is_recent:
            return False
        self.word[peer] = Word(height, head, self.now)
        return True

    def _listen_at_work(self, peer: PeerId, message: e.RoundMessage) -> None:
        match message:
            case m.Propose() | m.ProposeCommit():
                self.named |= named_in(message)
                self._claims_attempt(peer, message.attempt)
            case m.Accept():
                self.unwilling.discard(peer)
                self._answered(peer, message.attempt)
                self.accepts.setdefault((peer, message.attempt), message.coordinator)
            case m.Vote() if self.is_catching_up:
                pass  # R10.7
            case m.Vote() if self.place is not None and message.parent == self.place[1] and _is_genuine(peer, message):
                self.votes.setdefault((message.vote.peer, message.attempt), message.entry_hash)
            case m.Abandon() if self.is_believed(peer, message.attempt, is_led=False):
                self.left[peer] = message.attempt
                for other in (one for one in message.blames if one in self.views or one == self.me):
                    self.blames[peer, other] = message.round + CONFLICT_ROUNDS
            case _:
                pass

    def _listen_ready(self, peer: PeerId, ready: m.Ready) -> bool:
        known, is_believed = self.ready.get(peer), self.is_believed(peer, ready.attempt)
        self._claims_attempt(peer, ready.attempt)
        self._answered(peer, ready.attempt)
        if not is_believed:
            return True
        is_back = self.left.pop(peer, None) == self.attempt  # it had left, and may be proposed again (R12.6)
        is_newer = known is None or ready.attempt > known.attempt
        if known is None or is_newer or (ready.attempt == known.attempt and (ready.lock or not known.lock)):
            self.ready[peer] = ready  # a message that was overtaken takes nothing back
        return is_back or ready != known

    def _claims_attempt(self, peer: PeerId, attempt: int) -> None:
        """Alone in a later attempt (R5), or not."""
        if attempt > max(self.claims.get(peer, 0), self.attempt):
            self.suspicion[peer] = self.suspicion.get(peer, 0) + 1
        self.claims[peer] = attempt

    def _answered(self, peer: PeerId, attempt: int) -> None:
        if attempt >= self.attempt:
            self._forgive(peer)

    def _forgive(self, peer: PeerId) -> None:
        self.silent.discard(peer)
        self.awaited.pop(peer, None)

    # --- what follows

    def is_live(self, peer: PeerId) -> bool:
        return peer in self.views and self.views[peer].is_live and peer not in self.departed

    def live(self) -> list[PeerId]:
        departed = self.departed
        return [peer for peer, view in self.views.items() if view.is_live and peer not in departed]

    def is_there(self, peer: PeerId) -> bool:
        """Live, or unknown to membership and talking to us lately (R19.6)."""
        word = self.word.get(peer)
        is_stranger = peer not in self.views and peer not in self.departed
        return self.is_live(peer) or (is_stranger and word is not None and self._is_recent(word))

    def known_attempt(self, without: PeerId) -> int:
        """The latest that anybody else claims (R5)."""
        return max([self.attempt, *(attempt for other, attempt in self.claims.items() if other != without)])

    def is_believed(self, peer: PeerId, attempt: int, *, is_led: bool = True) -> bool:
        """Not too far beyond every attempt that is known (R5). `is_led`: it may have been led there (R5.5)."""
        jump_max = self.limits.attempt_jump_max
        if attempt <= self.attempt + jump_max:
            return True  # as a rule: nobody need be asked
        is_alone = not [other for other in self.live() if other != peer]
        return is_alone or (is_led and self.may_need(peer)) or attempt <= self.known_attempt(peer) + jump_max

    def is_suspected(self, peer: PeerId) -> bool:
        return self.suspicion.get(peer, 0) > SUSPICION_MAX

    def is_said_ahead(self, peer: PeerId) -> bool:
        """By its heartbeat: a lower word that comes right after one may be older (R19.5), or ends what it claims."""
        return peer in self.views and self.place is not None and self.views[peer].height > self.place[0]

    def stands_here(self, peer: PeerId) -> bool:
        """By its last word, or for want of one."""
        word = self.word.get(peer)
        return word is None or (word.height, word.head) == self.place

    def here(self) -> list[PeerId]:
        """Live others that surely stand on our head, as far as we were told."""
        assert self.place is not None
        live = [peer for peer in self.live() if self.stands_here(peer)]
        return [peer for peer in live if peer in self.ready or self.views[peer].head == self.place[1]]

    def has_joined(self, peer: PeerId) -> bool:
        return peer in self.ready and self.ready[peer].attempt >= self.attempt

    def note_silent(self, *, is_over: bool, is_open: bool) -> None:
        """`is_over`: joining had its time in this attempt. Who committed what leads here is here (R6.5). `is_open`: we
        take part in the round; what is not heard while we catch up is no silence."""
        if self.place is None:
            return
        if not is_open:
            self.awaited = {}
        live = self.live()
        said = [p for p in live if (word := self.word.get(p)) and (word.height, word.head) == self.place]
        # A liar's heartbeats put it here again and again, whatever else it says: it was waited for in between.
        beats = [peer for peer in live if self.views[peer].head == self.place[1]]
        missing = {peer for peer in (*self.here(), *said, *beats) if not self.has_joined(peer)}
        if is_open:
            for peer in missing - self.awaited.keys():
                self.awaited[peer] = self.now
        self.silent |= missing if is_over else set(filter(self.has_had_its_time, missing))

    def has_had_its_time(self, peer: PeerId) -> bool:
        """To join, over attempts."""
        limit = self.limits.progress_timeout_s - SLACK_S
        return peer in self.awaited and self.now - self.awaited[peer] >= limit

    def blame(self, others: Iterable[PeerId], round_index: RoundIndex) -> None:
        """We blame them ourselves."""
        for other in others:
            self.blames[self.me, other] = round_index + CONFLICT_ROUNDS


def named_in(message: m.Propose | m.ProposeCommit) -> set[PeerId]:
    """Who is told to take part."""
    return members(message) if isinstance(message, m.Propose) else set(message.voters)
