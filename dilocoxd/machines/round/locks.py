"""Counts votes and decides what locks mean: which entry may have been committed by somebody we cannot see.

A peer votes at most once per attempt and locks on what it voted for. An entry of attempt a is committed only by votes
of *all* its voters. So one voter that went on without voting proves that nobody has committed (protocol/06-rounds.md).
"""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dilocoxd.ids import Attempt, Digest, PeerId
from dilocoxd.wire.entry import Entry, Signature, SignedVote
from dilocoxd.wire.messages import Lock, Vote

ATTEMPTS_KEPT = 4
"""Votes of this many attempts are kept per peer (own attempt, the lock's, and early ones of the next)."""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """The entry we voted for last in this round."""

    attempt: Attempt
    entry: Entry
    entry_hash: Digest
    voters: tuple[PeerId, ...]
    results_held: bool
    """RESULT holds its payload."""
    offers: tuple[Signature, ...]
    """Under the entry's contributions, in their order."""
    coordinator: PeerId | None = None
    observers: tuple[PeerId, ...] = ()
    """Observers of the proposal: the commit also needs their acceptance."""
    owners: tuple[PeerId, ...] = ()
    """Who reduced each segment, as far as we took part in the exchange that made it; empty: we cannot say."""

    @property
    def on_wire(self) -> Lock:
        return Lock(self.attempt, self.entry_hash, self.voters, self.results_held)


@dataclass(frozen=True, slots=True)
class Tally:
    """State of one vote count."""

    votes: tuple[SignedVote, ...] | None
    """Sorted by peer, when every voter voted for this entry."""
    missing: tuple[PeerId, ...]
    dissenting: tuple[PeerId, ...]
    """Voted for another entry in the same attempt."""


@dataclass(slots=True)
class VoteBox:
    """Verified votes of one round. Bounded: ATTEMPTS_KEPT newest attempts of each peer."""

    votes: dict[PeerId, dict[Attempt, Vote]] = field(default_factory=dict)

    def add(self, vote: Vote) -> bool:
        """Keep a verified vote. False if this peer voted for something else in the same attempt before."""
        of_peer = self.votes.setdefault(vote.vote.peer, {})
        known = of_peer.get(vote.attempt)
        if known is not None:
            return known.entry_hash == vote.entry_hash
        of_peer[vote.attempt] = vote
        while len(of_peer) > ATTEMPTS_KEPT:
            del of_peer[min(of_peer)]
        return True

    def tally(self, attempt: Attempt, entry: Digest, voters: tuple[PeerId, ...]) -> Tally:
        cast = {peer: vote for peer in voters if (vote := self.votes.get(peer, {}).get(attempt)) is not None}
        missing = tuple(peer for peer in voters if peer not in cast)
        dissenting = tuple(sorted(peer for peer, vote in cast.items() if vote.entry_hash != entry))
        is_complete = not missing and not dissenting
        return Tally(tuple(cast[p].vote for p in sorted(cast)) if is_complete else None, missing, dissenting)


@dataclass(slots=True)
class AcceptBox:
    """Which proposal each observer accepted, in its newest attempts."""

    accepted: dict[PeerId, dict[Attempt, PeerId]] = field(default_factory=dict)

    def add(self, peer: PeerId, attempt: Attempt, coordinator: PeerId) -> None:
        of_peer = self.accepted.setdefault(peer, {})
        of_peer.setdefault(attempt, coordinator)
        while len(of_peer) > ATTEMPTS_KEPT:
            del of_peer[min(of_peer)]

    def missing(self, held: HeldLock) -> tuple[PeerId, ...]:
        """Witnesses that have not accepted the proposal that `held` comes from."""
        return tuple(p for p in held.observers if self.accepted.get(p, {}).get(held.attempt) != held.coordinator)


class LockDecision(NamedTuple):
    """`commit`: finish exactly this entry with `voters`. `is_free`: a new group may form. Else wait, with reason."""

    is_free: bool
    commit: Lock | None
    voters: tuple[PeerId, ...]
    reason: str


NO_LOCK: Final = LockDecision(True, None, (), "no lock stands")


def resolve_locks(
    locks: Mapping[PeerId, Lock | None],
    live: Set[PeerId],
    attempt: Attempt,
    *,
    may_fork: bool = True,
    is_fresh: Callable[[PeerId], bool] = lambda _: False,
) -> LockDecision:
    """What the locks of the peers that are ready in `attempt` (ourselves included) demand.

    Votes of whom `is_fresh` knows, who is on probation, commit nothing by themselves (M11).

    `locks` has one item per ready peer; `live` are the peers whose answer is worth waiting for. Two locks that both may
    stand come from a split network: the later attempt wins here, of one attempt the smaller hash once the voters of
    both have said what they can (R13.7); fork choice settles the rest.
    """
    found = {lock.entry_hash: lock for lock in sorted_locks(locks)}
    standing = [lock for lock in found.values() if _stands(lock, locks)]
    for lock in sorted(found.values(), key=lambda one: (-one.attempt, one.entry_hash)):
        if lock.attempt >= attempt:
            return LockDecision(False, None, (), "others vote in this attempt")
        if lock not in standing:
            continue
        beside = [voter for one in standing if one.attempt == lock.attempt for voter in one.voters]
        absent = sorted({v for v in beside if v in live and v not in locks})
        if absent:
            return LockDecision(False, None, (), f"an entry may be committed already; {', '.join(absent[:3])} must say")
        present = [v for v in lock.voters if v in locks]
        held = [locked for v in present if (locked := locks[v]) is not None]
        if all(map(is_fresh, lock.voters if not may_fork else present)):
            continue
        if not may_fork or any(locked.results_held for locked in held):
            return LockDecision(False, lock, tuple(present), "every live voter is locked on one entry: it is finished")
    return NO_LOCK


def _stands(lock: Lock, locks: Mapping[PeerId, Lock | None]) -> bool:
    """Whether nobody that is ready disproves it."""
    said = [locks[voter] for voter in lock.voters if voter in locks]
    return all(other is not None and other.entry_hash == lock.entry_hash for other in said)


def is_disproved(lock: HeldLock, locks: Mapping[PeerId, Lock | None]) -> bool:
    """Whether a voter that is ready, in a later attempt, without a lock on its entry proves that nobody has committed
    it (R13.1). `locks` as above."""
    return not _stands(lock.on_wire, locks)


def sorted_locks(locks: Mapping[PeerId, Lock | None]) -> list[Lock]:
    """All locks, earlier attempts first (so that a dict by entry keeps the latest one)."""
    return sorted((lock for lock in locks.values() if lock is not None), key=lambda one: (one.attempt, one.entry_hash))
