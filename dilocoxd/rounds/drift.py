"""Notices peers that stand elsewhere than we do: ahead, on another branch, or with other bits on the same head.

Decides when that is reason enough to start recovery. Source: docs/internals.md 3.10, protocol/06-rounds.md.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.limits import RoundLimits

SAME: Final = "same"
BEHIND: Final = "behind"
AHEAD: Final = "ahead"
FORK: Final = "fork"
REFUTED_FIRST: Final = 2
REFUTED_MAX: Final = 128
"""After a claim that recovery could not confirm, the peer's claims are ignored for this many `recovery_retry_s`: twice
as long after each such claim, forgotten once a claim of it proves true. The first time it is enough that the peer
stands where we stand; one that says so between its claims would else keep us busy for ever."""
BROKEN_MAX: Final = 5
"""A branch that was not to be had so often is not waited for any more."""
CLAIMS_MAX: Final = 1024
NEVER: Final = Monotonic(0.0)


def relation(chain: ChainView, height: RoundIndex, head: Digest) -> str:
    """Where a peer stands that claims this tip. What is too old to compare counts as behind."""
    if height > chain.height:
        return AHEAD
    if height == chain.height:
        return SAME if head == chain.head else FORK
    known = chain.hash_at(height - 1)
    return BEHIND if known is None or known == head else FORK


@dataclass(frozen=True, slots=True)
class Claim:
    """What a peer said last about where it stands, if that is not where we are."""

    height: RoundIndex
    head: Digest
    kind: str
    since: Monotonic
    said_at: Monotonic
    """When it said so last."""


@dataclass(slots=True)
class Drift:
    """Claims of others that would move us."""

    limits: RoundLimits
    claims: dict[PeerId, Claim] = field(default_factory=dict)
    refuted: set[PeerId] = field(default_factory=set)
    """Stand on a chain that recovery could not take, as far as we know."""
    ignored: dict[PeerId, tuple[Monotonic, int]] = field(default_factory=dict)
    """Until when claims of a peer are ignored, and the length of that in `recovery_retry_s`."""
    num_broken: dict[PeerId, int] = field(default_factory=dict)
    """How often a claimed branch of this peer was not to be had; forgotten once a claim of it proves true."""
    here: set[PeerId] = field(default_factory=set)
    """Said that they stand where we stand; membership may hear of it later."""
    retry_at: Monotonic = NEVER
    digests: dict[PeerId, Digest] = field(default_factory=dict)
    """State digests of peers at our head."""
    rebuilt_head: Digest | None = None

    def note(
        self, chain: ChainView, peer: PeerId, height: RoundIndex, head: Digest, now: Monotonic, *, is_late: bool = False
    ) -> str:
        """Remember where `peer` stands; returns the relation.

        Messages overtake each other: a lower height does not take back what the peer has just claimed. `is_late`: from
        a heartbeat, which says where the peer stood some time ago.
        """
        kind = relation(chain, height, head)
        known = self.claims.get(peer)
        is_overtaken = is_late or (known is not None and now - known.said_at < self.limits.behind_grace_s)
        if known is not None and known.height > height and is_overtaken:
            return kind
        until, length = self.ignored.get(peer, (now, 0))
        if kind == SAME:
            self.refuted.discard(peer)
            if length == REFUTED_FIRST:
                self.ignored[peer] = (now, length)
        if kind in (AHEAD, FORK):
            self.here.discard(peer)
        elif kind == SAME and len(self.here) < CLAIMS_MAX:
            self.here.add(peer)
        if kind in (SAME, BEHIND):
            self.claims.pop(peer, None)
        elif until > now:
            self.refuted.add(peer)  # stood where we stand meanwhile, but does so no more
        elif peer in self.claims or len(self.claims) < CLAIMS_MAX:
            since = known.since if known is not None else now
            self.claims[peer] = Claim(height, head, kind, since, now)
        return kind

    def review(self, chain: ChainView) -> None:
        """Our tip moved: drop claims that we have reached, and what was said about the old tip's bits."""
        moved = {p: (c, relation(chain, c.height, c.head)) for p, c in self.claims.items()}
        self.claims = {p: replace(c, kind=k) for p, (c, k) in moved.items() if k in (AHEAD, FORK)}
        self.here = {p for p, (_, k) in moved.items() if k == SAME}
        self.digests = {}

    def pressing(self) -> list[PeerId]:
        """Whose claims keep us from taking part until recovery has looked at them.

        Not those of a peer that was not confirmed twice: with a new claim now and then it could else keep everybody
        from committing.
        """
        return [peer for peer in self.claims if not self._is_doubted(peer)]

    def _is_doubted(self, peer: PeerId) -> bool:
        _, length = self.ignored.get(peer, (NEVER, 0))
        return length > REFUTED_FIRST

    def due(self, now: Monotonic) -> dict[PeerId, Claim]:
        """Claims that are old enough to act on; empty while none is."""
        if now < self.retry_at:
            return {}
        if not any(claim.since + self.limits.behind_grace_s <= now for claim in self.claims.values()):
            return {}
        return dict(self.claims)

    def next_due(self) -> Monotonic | None:
        if not self.claims:
            return None
        first = min([c.since for c in self.claims.values()])
        return Monotonic(max(self.retry_at, first + self.limits.behind_grace_s))

    def finished(
        self,
        chain: ChainView,
        asked: dict[PeerId, Claim],
        now: Monotonic,
        *,
        has_moved: bool,
        broken: Collection[PeerId] = (),
    ) -> None:
        """Recovery is over: whatever of `asked` still differs was not better than what we have, but for `broken`.

        A peer that went on meanwhile from where it said it stood was right. It is followed, at once: whoever took it
        for a liar would go on alone beside it, on a branch of its own.
        """
        self.retry_at = now if has_moved else Monotonic(now + self.limits.recovery_retry_s)
        self.review(chain)
        for peer, claim in asked.items():
            if relation(chain, claim.height, claim.head) not in (AHEAD, FORK):
                self.ignored.pop(peer, None)
                self.num_broken.pop(peer, None)
                self.refuted.discard(peer)
                continue
            if peer in broken and has_moved:
                self.num_broken.pop(peer, None)  # a part of it came
            elif peer not in broken or self._is_broken_often(peer):
                self._refute(peer, now)

    def _refute(self, peer: PeerId, now: Monotonic) -> None:
        length = min(REFUTED_MAX, 2 * self.ignored.get(peer, (now, REFUTED_FIRST // 2))[1])
        self.ignored[peer] = (Monotonic(now + length * self.limits.recovery_retry_s), length)
        if self.claims.pop(peer, None) is not None:
            self.refuted.add(peer)

    def failed(self, refuted: Iterable[PeerId], broken: Iterable[PeerId], now: Monotonic) -> None:
        """Recovery could not be done: try again later.

        Claims of `refuted` (provably false) are not confirmed, nor are those of `broken` (no answer, or not to be had)
        after a few times: whoever claims a branch and gives none would else keep us waiting for ever.
        """
        self.retry_at = Monotonic(now + self.limits.recovery_retry_s)
        for peer in [*refuted, *filter(self._is_broken_often, broken)]:
            self._refute(peer, now)

    def _is_broken_often(self, peer: PeerId) -> bool:
        self.num_broken[peer] = self.num_broken.get(peer, 0) + 1
        return self.num_broken[peer] >= BROKEN_MAX

    def wrong_bits(self, chain: ChainView) -> bool:
        """Whether too many peers at our own head hold other bits, so that ours must be rebuilt (once per head)."""
        differing = sum([digest != chain.state_digest for digest in self.digests.values()])
        agreeing = 1 + len(self.digests) - differing
        return differing >= agreeing and differing > 0 and self.rebuilt_head != chain.head
