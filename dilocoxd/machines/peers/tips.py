"""Notices peers that stand elsewhere than we do: ahead, on another branch, or with other bits on the same head.

Decides when that is reason enough to start recovery, and whose claims are believed. Source: protocol/06-rounds.md
(R19, R22, R23).
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Set
from dataclasses import dataclass, replace
from typing import Final, Literal

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.peers.record import NEVER, Claim, PeerRecords, Standing, Tip
from dilocoxd.machines.peers.view import PeerView

Heartbeat = Literal["none", "new", "repeated"]
"""Whether where a peer stands was said by a heartbeat, and whether that was heard before."""
SAME: Final = "same"
BEHIND: Final = "behind"
AHEAD: Final = "ahead"
FORK: Final = "fork"
BACKOFF_FIRST: Final = 2
BACKOFF_MAX: Final = 128
"""After a claim that recovery could not confirm, the peer's claims are ignored for this many `recovery_retry_s`: twice
as long after each such claim, forgotten once a claim of it proves true. The first time it is enough that the peer
stands where we stand; one that says so between its claims would else keep us busy for ever."""
UNAVAILABLE_MAX: Final = 5
"""A branch that was not to be had so often is not waited for any more."""
CLAIMS_MAX: Final = 1024
COMPARED_PROGRESSES: Final = 8
"""Times the progress time-out that a branch may take to be shown whole while most are on another one, at first."""
OVERDUE_MAX: Final = 4
"""So often that is doubled."""
OVERDUE_REST: Final = 8
"""Whose branch was not there in its time is not looked at for so many times that: at most a ninth of our time."""


@dataclass(frozen=True, slots=True)
class Vain:
    """Whose branches a recovery could not have."""

    unavailable: Collection[PeerId] = ()
    in_part: PeerId | None = None
    """Of those: a part came."""
    overdue: Collection[PeerId] = ()
    """Not shown in the time that they had (R22.6)."""


def relation(chain: ChainView, height: RoundIndex, head: Digest) -> str:
    """Where a peer stands that claims this tip. What is too old to compare counts as behind."""
    if height > chain.height:
        return AHEAD
    if height == chain.height:
        return SAME if head == chain.head else FORK
    known = chain.hash_at(height - 1)
    return BEHIND if known is None or known == head else FORK


class Tips:
    """Claims of others that would move us. They lie in the peers' records; who has one is listed here."""

    def __init__(self, limits: RoundLimits, records: PeerRecords) -> None:
        self._limits: Final = limits
        self._records: Final = records
        self._claiming: set[PeerId] = set()
        """Who has a claim that counts."""
        self._unconfirmed: set[PeerId] = set()
        """Whose record says `is_unconfirmed`."""
        self.retry_at = NEVER
        """No recovery before then."""
        self.rebuilt_head: Digest | None = None
        """The head at which our bits were found wrong last."""
        self.dead: Container[Digest] = frozenset()
        """Heads of chains with an entry that was taken back (R29): who stands there is behind."""

    # --- what is known

    def relation(self, chain: ChainView, height: RoundIndex, head: Digest) -> str:
        """Where a peer stands that claims this tip."""
        kind = relation(chain, height, head)
        return BEHIND if kind in (AHEAD, FORK) and head in self.dead else kind

    @property
    def claims(self) -> dict[PeerId, Claim]:
        """Claims that count, by peer."""
        found = ((peer, self._records[peer].tip.claim) for peer in self._claiming)
        return {peer: claim for peer, claim in found if claim is not None}

    def said_height(self, peer: PeerId) -> RoundIndex:
        """How far on the peer says it is, whether we believe that or not; 0: not further than we are."""
        tip = self._records[peer].tip if peer in self._records else None
        if tip is None:
            return RoundIndex(0)
        return max(tip.ignored_height, tip.claim.height) if tip.claim is not None else tip.ignored_height

    @property
    def unconfirmed(self) -> Set[PeerId]:
        """Stand on a chain that recovery could not take, as far as we know."""
        return self._unconfirmed

    def here(self) -> list[PeerId]:
        """Said that they stand where we stand."""
        return [peer for peer, record in self._records.items() if record.tip.is_at_our_head]

    def pressing(self) -> list[PeerId]:
        """Whose claims keep us from taking part until recovery has looked at them.

        Not those of a peer that was not confirmed twice: with a new claim now and then it could else keep everybody
        from committing.
        """
        if not self._claiming:
            return []  # as a rule: this is asked at every event
        return [peer for peer in self._claiming if not self._is_doubted(self._records[peer].tip)]

    def contrary(self, entry: Digest, height: RoundIndex) -> list[PeerId]:
        """Of those, whose claim is not this very entry, which leads to this height."""
        claims = self.claims
        return [p for p in self.pressing() if (claims[p].height, claims[p].head) != (height, entry)]

    def due(self, now: Monotonic) -> dict[PeerId, Claim]:
        """Claims that are old enough to act on; empty while none is."""
        if now < self.retry_at:
            return {}
        claims = self.claims
        if not any(claim.since + self._limits.behind_grace_s <= now for claim in claims.values()):
            return {}
        return claims

    def next_due(self) -> Monotonic | None:
        """When a claim is old enough; None without any."""
        if not self._claiming:
            return None
        first = min([claim.since for claim in self.claims.values()])
        return Monotonic(max(self.retry_at, first + self._limits.behind_grace_s))

    def has_wrong_bits(self, chain: ChainView) -> bool:
        """Whether as many live peers at our own head agree on other bits as hold ours, which must be rebuilt then (once
        per head)."""
        if self.rebuilt_head == chain.head:
            return False
        ours, records = chain.state_digest, self._records
        others = [p for p, r in records.items() if r.tip.digest is not None and r.tip.digest != ours and r.is_live]
        if not others:
            return False  # as a rule: this is asked at every event
        counted = Counter(records[peer].tip.digest for peer in others if not chain.is_on_probation(peer))
        same = [p for p, r in records.items() if r.tip.digest == ours and r.is_live and not chain.is_on_probation(p)]
        agreeing = 1 + len(same)
        return max(counted.values(), default=0) >= agreeing

    @staticmethod
    def _is_doubted(tip: Tip) -> bool:
        return tip.backoff_length > BACKOFF_FIRST

    # --- what others say

    def hear(
        self,
        chain: ChainView,
        peer: PeerId,
        height: RoundIndex,
        head: Digest,
        now: Monotonic,
        heartbeat: Heartbeat = "none",
    ) -> str:
        """Remember where `peer` stands; returns the relation.

        Messages overtake each other: a lower height does not take back what the peer has just claimed. A `heartbeat`
        says where the peer stood some time ago; since then it may have changed to another branch too, at the same
        height (R19.5). One that is repeated was heard before.
        """
        is_late = heartbeat != "none"
        tip = self._records.of(peer).tip
        kind, known = self.relation(chain, height, head), tip.claim
        if known is not None:
            is_recent = now - known.said_at < self._limits.behind_grace_s
            is_older = known.height > height and (is_late or is_recent)
            if is_older or (is_late and known.height == height and known.head != head):
                return kind
        if kind == SAME:
            tip.our_head_said_at = tip.our_head_said_at if is_late else now
            self._believe(peer, tip)
            if tip.backoff_length == BACKOFF_FIRST:
                tip.backoff_until = now
        if kind in (SAME, BEHIND):
            tip.is_at_our_head, tip.ignored_height = tip.is_at_our_head or kind == SAME, RoundIndex(0)
            self.withdraw(peer)
            return kind
        tip.is_at_our_head = False
        if tip.backoff_until > now:
            self._mark_unconfirmed(peer, tip)  # stood where we stand meanwhile, but does so no more
            if heartbeat != "repeated":
                self._ignore(tip, height, now, is_late=is_late)
        elif known is not None or (len(self._claiming) < CLAIMS_MAX and peer in self._records):
            tip.claim = Claim(height, head, kind, known.since if known is not None else now, now)
            self._claiming.add(peer)
        return kind

    def patience_s(self, chain: ChainView) -> dict[PeerId, float]:
        """How long each of those who claim something may take to show it, seconds, while more are on our chain than
        claim another one; empty: as long as they show something (R22.6). Who is on probation counts on neither side:
        such ids cost nothing."""
        with_us = [peer for peer, record in self._records.items() if self._is_with_us(chain, peer, record)]
        elsewhere = [peer for peer in self._claiming if not chain.is_on_probation(peer)]
        if not with_us or 1 + len(with_us) <= len(elsewhere):
            return {}
        return {peer: self._limit_s(self._records[peer].tip) for peer in self._claiming}

    def _is_with_us(self, chain: ChainView, peer: PeerId, record: Standing) -> bool:
        """Where we stand, or on our chain further down: whoever is first at a new height is not alone. Who has nothing
        yet, or claims what could not be confirmed, says nothing of our chain."""
        if not record.is_live or peer in self._claiming or chain.is_on_probation(peer):
            return False
        view, tip = record.view, record.tip
        if tip.is_at_our_head or tip.is_unconfirmed or view is None or view.height == 0:
            return tip.is_at_our_head
        return self.relation(chain, view.height, view.head) in (SAME, BEHIND)

    def _limit_s(self, tip: Tip) -> float:
        """Twice as long each time, or a long branch would never be shown."""
        return COMPARED_PROGRESSES * self._limits.progress_timeout_s * (1 << tip.num_overdue)

    def grow_old(self, now: Monotonic) -> None:
        """All that is claimed was claimed before this process took part: no grace is due (R19.7)."""
        for peer, claim in self.claims.items():
            self._records[peer].tip.claim = replace(claim, since=Monotonic(now - self._limits.behind_grace_s))

    def _ignore(self, tip: Tip, height: RoundIndex, said_at: Monotonic, *, is_late: bool = False) -> None:
        """Ignored or not, it is a word: one further down takes it back, unless it may only have been overtaken."""
        is_recent = said_at - tip.ignored_at < self._limits.behind_grace_s
        if height >= tip.ignored_height or not (is_late or is_recent):
            tip.ignored_height, tip.ignored_at = height, said_at

    def is_contradicted(self, chain: ChainView, view: PeerView) -> bool:
        """Whether a heartbeat says that its peer is here or behind, and the peer claims something else."""
        is_elsewhere = self.relation(chain, view.height, view.head) in (AHEAD, FORK)
        return not is_elsewhere and self._records[view.peer].tip.claim is not None

    def has_fallen_back(self, peer: PeerId, now: Monotonic) -> bool:
        """Whether a word from further down is news, and was not only overtaken by one from here or above."""
        tip = self._records[peer].tip
        return tip.claim is None and now - tip.our_head_said_at >= self._limits.behind_grace_s

    def holds_bits(self, peer: PeerId, digest: Digest) -> None:
        """The peer says what it holds at our head."""
        self._records.of(peer).tip.digest = digest

    def withdraw(self, peer: PeerId) -> None:
        """The peer claims nothing any more, or nobody could show it to us."""
        self._claiming.discard(peer)
        self._records[peer].tip.claim = None

    def forget(self, peer: PeerId) -> None:
        """Nothing is held of the peer any more."""
        self._claiming.discard(peer)
        self._unconfirmed.discard(peer)

    # --- what we find out

    def review(self, chain: ChainView) -> None:
        """Our tip moved: drop claims that we have reached, and what was said about the old tip's bits."""
        for record in self._records.values():
            record.tip.is_at_our_head, record.tip.digest = False, None
        for peer, claim in self.claims.items():
            tip, kind = self._records[peer].tip, self.relation(chain, claim.height, claim.head)
            tip.is_at_our_head = kind == SAME
            tip.our_head_said_at = claim.said_at if tip.is_at_our_head else tip.our_head_said_at
            if kind in (AHEAD, FORK):
                tip.claim = replace(claim, kind=kind)
            else:
                self.withdraw(peer)

    def stood_still(self, seconds: float) -> None:
        """We were not running: our own commit may lie in the inbox, and messages there have overtaken others."""
        for record in self._records.values():
            if record.tip.our_head_said_at > NEVER:
                record.tip.our_head_said_at = Monotonic(record.tip.our_head_said_at + seconds)
            record.tip.ignored_at = Monotonic(record.tip.ignored_at + seconds)
        for peer, claim in self.claims.items():
            since, said_at = Monotonic(claim.since + seconds), Monotonic(claim.said_at + seconds)
            self._records[peer].tip.claim = replace(claim, since=since, said_at=said_at)

    def finished(
        self,
        chain: ChainView,
        asked: dict[PeerId, Claim],
        now: Monotonic,
        vain: Vain = Vain(),
        *,
        has_moved: bool,
    ) -> None:
        """Recovery is over: whatever of `asked` still differs was not better than what we have, but for those whose
        branch was not to be had.

        Of the branch of `in_part`, one of those, a part came: that is no vain try (R22.2). That our head has moved says
        nothing about the others: somebody else's branch moved it; `review` has compared them with it.

        A peer that went on meanwhile from where it said it stood was right. It is followed, at once: whoever took it
        for a liar would go on alone beside it, on a branch of its own.
        """
        self.retry_at = now if has_moved else Monotonic(now + self._limits.recovery_retry_s)
        for peer, claim in asked.items():
            tip = self._records.of(peer).tip
            if self.relation(chain, claim.height, claim.head) not in (AHEAD, FORK):
                self._trust(peer, tip)
            elif peer == vain.in_part:
                tip.num_unavailable = 0
            elif peer not in vain.unavailable or self._counts_as_unavailable(tip):
                self._back_off(peer, tip, now, is_overdue=peer in vain.overdue)

    def failed(
        self,
        unconfirmed: Iterable[PeerId],
        unavailable: Iterable[PeerId],
        now: Monotonic,
        overdue: Collection[PeerId] = (),
    ) -> None:
        """Recovery could not be done: try again later.

        Claims of `unconfirmed` (provably false) are not confirmed, nor are those of `unavailable` (no answer, or no
        branch) after a few times: whoever claims a branch and gives none would else keep us waiting for ever.
        """
        self.retry_at = Monotonic(now + self._limits.recovery_retry_s)
        for peer in unconfirmed:
            self._back_off(peer, self._records.of(peer).tip, now, is_overdue=peer in overdue)
        for peer in unavailable:
            if self._counts_as_unavailable(tip := self._records.of(peer).tip):
                self._back_off(peer, tip, now)

    def pardon(self, peers: Iterable[PeerId]) -> None:
        """The operator wants to be where these peers are: what could not be confirmed before says nothing any more."""
        for peer in peers:
            tip = self._records.of(peer).tip
            self._trust(peer, tip)

    def _counts_as_unavailable(self, tip: Tip) -> bool:
        """One more time that its branch was not to be had; True when that was once too often."""
        tip.num_unavailable += 1
        return tip.num_unavailable >= UNAVAILABLE_MAX

    def _back_off(self, peer: PeerId, tip: Tip, now: Monotonic, *, is_overdue: bool = False) -> None:
        tip.backoff_length = min(BACKOFF_MAX, 2 * (tip.backoff_length or BACKOFF_FIRST // 2))
        seconds = tip.backoff_length * self._limits.recovery_retry_s
        if is_overdue:
            seconds = max(seconds, OVERDUE_REST * self._limit_s(tip))
            tip.num_overdue = min(OVERDUE_MAX, tip.num_overdue + 1)
        tip.backoff_until = Monotonic(now + seconds)
        if tip.claim is not None:
            self._ignore(tip, tip.claim.height, tip.claim.said_at)
            self.withdraw(peer)
            self._mark_unconfirmed(peer, tip)

    def _trust(self, peer: PeerId, tip: Tip) -> None:
        """A claim of it proved true, or the operator wants to be where it is: what was in vain is forgotten."""
        tip.backoff_until, tip.backoff_length, tip.num_unavailable, tip.num_overdue = NEVER, 0, 0, 0
        self._believe(peer, tip)

    def _mark_unconfirmed(self, peer: PeerId, tip: Tip) -> None:
        tip.is_unconfirmed = True
        self._unconfirmed.add(peer)

    def _believe(self, peer: PeerId, tip: Tip) -> None:
        tip.is_unconfirmed = False
        self._unconfirmed.discard(peer)
