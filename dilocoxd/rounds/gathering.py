"""Keeps what is known while a group forms: who is ready with what, how fast phases are, who complains about whom.

Decides how long stragglers are waited for. Source: protocol/06-rounds.md, docs/internals.md 3.1-3.3.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from statistics import median

from dilocoxd.ids import Attempt, Monotonic, PeerId, RoundIndex
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.coordinator import Gathered, contribution_problem
from dilocoxd.rounds.events import PeerView
from dilocoxd.rounds.limits import RoundLimits
from dilocoxd.rounds.site_steps import site_inner_steps
from dilocoxd.wire.messages import Ready

PACE_NEW = 0.5
"""Weight of the newest measurement in a peer's phase time."""
CONFLICT_ROUNDS = 3
"""A complaint keeps two peers out of one group for this many rounds."""
PEERS_MAX = 4096
ABANDONS_MAX = 3
"""Who gives up this many attempts of one round is left out of the rest of it."""
RAISES_MAX = 3
"""Who goes to a later attempt alone more often than this is neither followed nor waited for; half is forgotten at each
new height. An honest peer gives up attempts too, but the others see the same cause and follow of themselves."""
RAISES_KEPT = 4 * RAISES_MAX


@dataclass(slots=True)
class Pace:
    """Measured phase times: intervals between contributions, as this peer saw them."""

    seen_at: dict[PeerId, Monotonic] = field(default_factory=dict)
    phase_of: dict[PeerId, int] = field(default_factory=dict)
    seconds: dict[PeerId, float] = field(default_factory=dict)
    typical: float | None = None
    """Median of `seconds`; None while nothing has been measured."""

    def contributed(self, peer: PeerId, phase: int, now: Monotonic) -> None:
        """Take note of a contribution; the time since the one before is a phase.

        The way to a peer's first contribution is no phase time: starting trainers and reading data for a minute would
        make everybody believe for many rounds that this peer is not due yet, and leave it out.
        """
        before = self.phase_of.get(peer, -1)
        if phase <= before:
            return
        self.phase_of[peer] = phase
        since = self.seen_at.get(peer)
        self.seen_at[peer] = now
        if since is None:
            return
        measured = (now - since) / (phase - before)
        known = self.seconds.get(peer)
        self.seconds[peer] = measured if known is None else known + PACE_NEW * (measured - known)
        self.typical = median(self.seconds.values())

    def gone(self, peers: Iterable[PeerId]) -> None:
        """The time until the next contribution of such a peer says how long it was away: that is no phase time."""
        for peer in peers:
            self.seen_at.pop(peer, None)

    def expected(self, peer: PeerId) -> Monotonic | None:
        """When the peer's next contribution is due; None while its pace is unknown."""
        seconds, seen_at = self.seconds.get(peer), self.seen_at.get(peer)
        return None if seconds is None or seen_at is None else Monotonic(seen_at + seconds)

    def planned(self, peer: PeerId, inner_steps: int, step_seconds: float | None) -> Monotonic | None:
        """When the peer has done `inner_steps` since its last contribution; None before its first one and after an
        absence."""
        seen_at = self.seen_at.get(peer)
        return None if seen_at is None or step_seconds is None else Monotonic(seen_at + inner_steps * step_seconds)

    def grace(self, limits: RoundLimits) -> float:
        """How long stragglers are waited for; the longest grace while nothing has been measured."""
        if self.typical is None:
            return limits.grace_max_s
        return min(limits.grace_max_s, max(limits.grace_min_s, limits.grace_factor * self.typical))


@dataclass(slots=True)
class Conflicts:
    """Pairs that failed with each other lately: (who complains, about whom) -> last round in which it counts."""

    until: dict[tuple[PeerId, PeerId], RoundIndex] = field(default_factory=dict)

    def blame(self, complains: PeerId, about: Iterable[PeerId], round_index: RoundIndex) -> None:
        for peer in about:
            if peer != complains and len(self.until) < PEERS_MAX:
                self.until[complains, peer] = RoundIndex(round_index + CONFLICT_ROUNDS)

    def pairs(self, round_index: RoundIndex) -> frozenset[tuple[PeerId, PeerId]]:
        if self.until:
            self.until = {pair: last for pair, last in self.until.items() if last >= round_index}
        return frozenset(self.until)


class Gathering:
    """Readiness of everybody in one round. Rebuilt for each height; pace, conflicts and slow peers go on."""

    def __init__(self, me: PeerId, limits: RoundLimits) -> None:
        self.me = me
        self.limits = limits
        self.pace = Pace()
        self.conflicts = Conflicts()
        self.raises: dict[PeerId, int] = {}
        """How often a peer was alone in a later attempt when we heard of it."""
        self.slow: set[PeerId] = set()
        """Were waited for in vain; nobody waits for them again until they contribute."""
        self.readies: dict[PeerId, Ready] = {}
        self.first_ready_at: Monotonic | None = None
        self.abandons: dict[PeerId, set[Attempt]] = {}
        """Attempts of this round that a peer was the first to give up."""
        self.withdrawn: dict[PeerId, Attempt] = {}
        """Attempts that a peer left to catch up; over with its next Ready."""
        self.claimed: dict[PeerId, Attempt] = {}
        """Last attempt that each peer said to be in, believed or not."""
        self.last_owners: tuple[PeerId, ...] = ()
        """Owners in the last exchange of this round: they hold inputs already."""
        self.owners_before: tuple[PeerId, ...] = ()
        """Of the newest round before this one that we exchanged in."""

    def next_round(self) -> None:
        self.readies = {}
        self.owners_before = self.last_owners or self.owners_before
        self.last_owners = ()
        self.abandons = {}
        self.withdrawn = {}
        self.claimed = {}
        self.raises = {peer: count // 2 for peer, count in self.raises.items() if count > 1}
        self.first_ready_at = None

    def known_attempt(self, without: PeerId, own: Attempt) -> Attempt:
        """The latest attempt that anybody else says to be in, believed or not."""
        return max([own, *(attempt for peer, attempt in self.claimed.items() if peer != without)])

    def hear_attempt(self, peer: PeerId, attempt: Attempt, known: Attempt, *, is_alone_with_it: bool) -> None:
        """A peer says in which attempt it is; it counts who is alone in a later one than everybody else (`known`)."""
        is_alone = attempt > max(known, self.claimed.get(peer, known)) and not is_alone_with_it
        if is_alone and (peer in self.raises or len(self.raises) < PEERS_MAX):
            self.raises[peer] = min(RAISES_KEPT, self.raises.get(peer, 0) + 1)
        if peer in self.readies or len(self.claimed) < PEERS_MAX:
            self.claimed[peer] = attempt

    def is_restless(self, peer: PeerId) -> bool:
        return self.raises.get(peer, 0) > RAISES_MAX

    def latest_attempt(self, live: Set[PeerId], own: Attempt) -> Attempt:
        """The attempt to be in: the latest of a live peer; of those who raise too often, the latest of two."""
        latest = own
        restless: list[Attempt] = []
        for peer, ready in self.readies.items():
            if ready.attempt <= latest or peer not in live:
                continue
            if self.is_restless(peer):
                restless.append(ready.attempt)
            else:
                latest = ready.attempt
        return max(latest, sorted(restless)[-2]) if len(restless) > 1 else latest

    def note(self, peer: PeerId, ready: Ready, now: Monotonic) -> None:
        """Merge a Ready for our height and head: the latest attempt counts, and within it what says more."""
        known = self.readies.get(peer)
        if known is None and len(self.readies) >= PEERS_MAX:
            return
        self.readies[peer] = ready if known is None else merged(known, ready)
        self.withdrawn.pop(peer, None)
        contribution = self.readies[peer].contribution
        if contribution is not None:
            self.slow.discard(peer)
            self.pace.contributed(peer, contribution.phase, now)
            if self.first_ready_at is None:
                self.first_ready_at = now

    def is_in(self, peer: PeerId, attempt: Attempt) -> bool:
        """Whether this peer takes part in the attempt, as far as we know."""
        ready = self.readies.get(peer)
        return ready is not None and ready.attempt == attempt != self.withdrawn.get(peer)

    def gave_up(self, peer: PeerId, attempt: Attempt) -> None:
        if peer not in self.readies:
            return
        self.withdrawn[peer] = attempt
        if len(self.abandons.setdefault(peer, set())) < ABANDONS_MAX:
            self.abandons[peer].add(attempt)

    def is_left_out(self, peer: PeerId) -> bool:
        """Gave up too many attempts of this round, or keeps all from staying in one."""
        return len(self.abandons.get(peer, ())) >= ABANDONS_MAX or self.is_restless(peer)

    def give_up(self, awaited: Mapping[PeerId, Monotonic | None], now: Monotonic) -> None:
        """The grace is over: those that should have had something to offer by now count as slow."""
        for peer, expected in awaited.items():
            ready = self.readies.get(peer)
            is_due = expected is None or expected <= now
            if peer != self.me and is_due and (ready is None or ready.contribution is None):
                self.slow.add(peer)

    def gathered(
        self,
        chain: ChainView,
        views: dict[PeerId, PeerView],
        attempt: Attempt,
        started_at: Monotonic,
        mute: Set[PeerId],
    ) -> Gathered:
        """Input of `decide_group` for this attempt, as far as we know."""
        live = {peer: view for peer, view in views.items() if view.is_live}
        readies = self.readies
        contributions = {
            peer: ready.contribution
            for peer, ready in readies.items()
            if ready.contribution is not None
            and self.is_in(peer, attempt)
            and (peer in live or peer == self.me)
            and not contribution_problem(ready.contribution, chain, self.limits)
        }
        is_calm = not self.abandons and not self.raises
        steady = contributions if is_calm else {p: c for p, c in contributions.items() if not self.is_left_out(p)}
        pairs = self.conflicts.pairs(chain.height)
        accused = {about for _, about in pairs}
        awaited = {
            peer: self.pace.expected(peer)
            for peer, view in live.items()
            if peer not in contributions
            and peer not in accused
            and self.withdrawn.get(peer) != attempt
            and self._is_expected(peer, view, chain)
        }
        missing = {
            peer: view
            for peer, view in live.items()
            if peer not in mute and not self._has_joined(peer, attempt) and not self.is_restless(peer)
        }
        unready = frozenset([p for p, v in missing.items() if p in readies or v.head == chain.head])
        absent = frozenset([p for p, v in missing.items() if v.height < chain.height and p not in unready])
        return Gathered(
            contributions=steady or contributions,
            awaited=awaited,
            unready=unready,
            absent=absent,
            first_ready_at=self.first_ready_at if self.first_ready_at is not None else started_at,
            attempt_started_at=started_at,
            grace_s=self.pace.grace(self.limits),
            conflicts=pairs,
            recent_contributors=chain.recent_contributors,
        )

    def _has_joined(self, peer: PeerId, attempt: Attempt) -> bool:
        ready = self.readies.get(peer)
        return ready is not None and ready.attempt >= attempt

    def paces(self, views: Mapping[PeerId, PeerView]) -> dict[PeerId, float]:
        """Step times of the other sites that train, as far as they are known; empty unless sites do their own number of
        steps."""
        if not self.limits.site_steps_min:
            return {}
        return {p: v.step_seconds for p, v in views.items() if v.is_live and v.is_training and v.step_seconds}

    def _planned_steps(self, peer: PeerId, inner_steps: int, paces: Mapping[PeerId, float], own: float) -> int:
        others = [*(seconds for other, seconds in paces.items() if other != peer), *([own] if own else [])]
        return site_inner_steps(inner_steps, paces.get(peer, 0.0), others, self.limits.site_steps_min)

    def others_due(
        self, chain: ChainView, views: Mapping[PeerId, PeerView], now: Monotonic, own_step_s: float = 0.0
    ) -> Monotonic | None:
        """When the last of those that the group would wait for anyway is due; None if nobody is worth training on for.

        A site that is ahead of the others trains on until then instead of letting its contribution age. Counted from
        *planned* phases: with measured ones, two sites that wait for each other would both expect the other even later.
        """
        latest = now + self.pace.grace(self.limits)
        paces = self.paces(views)
        due = [
            expected
            for peer, view in views.items()
            if view.is_live
            and self._is_expected(peer, view, chain)
            and (peer not in self.readies or self.readies[peer].contribution is None)
            and (
                expected := self.pace.planned(
                    peer, self._planned_steps(peer, chain.inner_steps, paces, own_step_s), view.step_seconds
                )
            )
            is not None
            and now < expected <= latest
        ]
        return max(due, default=None)

    def _is_expected(self, peer: PeerId, view: PeerView, chain: ChainView) -> bool:
        ready = self.readies.get(peer)
        if ready is not None and ready.contribution is not None:
            return True
        return view.is_training and peer not in self.slow and view.height in (chain.height, chain.height - 1)


def merged(known: Ready, newer: Ready) -> Ready:
    """One Ready out of two of the same peer, round and head, in whatever order they came."""
    if newer.attempt != known.attempt:
        return newer if newer.attempt > known.attempt else known
    contribution = newer.contribution
    if contribution is None or (known.contribution is not None and known.contribution.phase > contribution.phase):
        contribution = known.contribution
    lock = newer.lock
    if lock is None or (known.lock is not None and known.lock.attempt > lock.attempt):
        lock = known.lock
    if contribution is newer.contribution and lock is newer.lock:
        return newer
    return replace(newer, contribution=contribution, lock=lock)
