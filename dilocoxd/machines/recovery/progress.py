"""Takes one better branch: the way to its tip first, then our own entries left, then snapshot and entries in order.

Where our disk does not lead to the fork any more and no snapshot is on the way, the payloads that it lacks come from
others. Source: protocol/09-catching-up.md L9.5, L11, L14, L15, L17.
"""

from collections.abc import Callable, Sequence, Set as AbstractSet
from dataclasses import dataclass, field

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.branch import Branch, is_better
from dilocoxd.machines.recovery.finality import leads_to
from dilocoxd.machines.recovery.outcomes import (
    UNNUMBERED,
    Asking,
    Better,
    Complete,
    Failed,
    NoSnapshot,
    Outcome,
    Question,
    SearchOutcome,
    SnapshotFound,
)
from dilocoxd.machines.recovery.own_chain import OwnChain
from dilocoxd.machines.recovery.rollback import settlement
from dilocoxd.machines.recovery.snapshot_search import SnapshotSearch
from dilocoxd.wire.entry import SignedEntry

QUICK_PART = 1 / 8
"""Of its time: a donor that takes more for a payload is compared with those that have given none yet."""


@dataclass(slots=True)
class PayloadFetch:
    """The payload of one entry, asked of one donor after the other."""

    signed: SignedEntry
    to_ask: list[PeerId]
    """Donors that have not been asked yet, best first."""
    reasons: list[str] = field(default_factory=list)
    """Why the others could not give it."""

    @property
    def problem(self) -> str:
        """Why nobody could give it."""
        return f"payload of entry {self.signed.entry.round}: {'; '.join(self.reasons)}"


@dataclass(frozen=True, slots=True)
class Sources:
    """Who may be asked, and how long."""

    donors: tuple[PeerId, ...]
    """Best first."""
    liars: AbstractSet[PeerId]
    """Gave a wrong chunk or made up a snapshot; may grow."""
    limits: r.RecoveryLimits
    payload_bytes: Callable[[int], int]
    """Size of an entry's payload, by low rank."""


class BranchProgress:
    """`better`: what is taken; `chain`: where our log stands, which only the machine changes."""

    def __init__(self, better: Better, chain: OwnChain, sources: Sources) -> None:
        self._better = better
        self._chain = chain
        self._sources = sources
        self._donors = dict.fromkeys(sources.donors, QUICK_PART)
        """How large a part of its time each took for its last payload, 1 if it failed: in the order in which they are
        asked for the next one."""
        self._is_begun = False
        """Our own branch, if there is one, has been given up for it."""
        self._search: SnapshotSearch | None = None
        self._snapshot: r.Offer | None = None
        """On our disk, to be adopted."""
        self._described_by: tuple[PeerId, ...] = ()
        """Whose description it fits."""
        self._payload: PayloadFetch | None = None
        self._can_replay = better.can_replay
        """Our disk leads to the state at the fork."""
        self._refused = ""
        """Why it did not, although nothing was missing, in brackets."""
        self._missing = list(better.missing)
        """Of entries of ours below the fork, to be restored."""

    @property
    def peer(self) -> PeerId:
        """Whose branch it is."""
        return self._better.peer

    @property
    def fork(self) -> int:
        return self._better.branch.fork

    @property
    def has_own(self) -> bool:
        """We leave entries of ours for it."""
        return bool(self._better.own)

    @property
    def search_text(self) -> str:
        """What the search for a snapshot waits for; empty when there is none."""
        return self._search.text if self._search is not None else ""

    @property
    def _honest(self) -> list[PeerId]:
        return [peer for peer in self._donors if peer not in self._sources.liars]

    @property
    def _num_taken(self) -> int:
        return self._chain.height - self.fork if self._is_begun else 0

    def extend(self, peers: Sequence[PeerId]) -> None:
        """These may have it, too (R22.7)."""
        self._donors |= dict.fromkeys(peers, QUICK_PART)
        if self._payload is not None:
            self._payload.to_ask += peers

    def next_deadline(self) -> Monotonic | None:
        """When `on_tick` may have something to ask."""
        return self._search.next_deadline() if self._search is not None else None

    def start(self) -> Outcome:
        """Search for a snapshot if entries alone are no way, or a long one."""
        is_long = len(self._better.branch.entries) > self._sources.limits.replay_max
        return self._seek_snapshot() if is_long or not self._can_replay else self._begin()

    def on_answer(self, ask: r.Ask, event: r.Answer, *, now: Monotonic, part_taken: float = 0.0) -> Outcome:
        """The answer to `ask`. `part_taken`: of its time."""
        if (search := self._search) is not None:
            outcome = search.on_answer(ask, event, now=now)
            is_unfinished = search.is_fetching or isinstance(outcome, NoSnapshot)
            # What came is on disk, and not asked for again. Twice as many each time: that is seldom, whoever adds them.
            is_small = search.num_sources < self._sources.limits.sources_max
            is_worth_it = is_unfinished and is_small and len(self._honest) >= 2 * search.num_sources
            return self._seek_snapshot() if is_worth_it else self._searched(outcome)
        payload = self._payload
        assert payload is not None
        # Not held against a donor that failed: it may be on another chain by now. But it is asked last.
        self._donors[ask.peer] = 1.0 if isinstance(event, r.AskFailed) else part_taken
        self._donors = dict(sorted(self._donors.items(), key=lambda one: one[1]))
        if isinstance(event, r.PayloadCame):
            if not self._is_begun:
                return r.RestorePayload(payload.signed, event.request)
            flying = self._chain.in_flight
            return r.TakeEntry(payload.signed, event.request, settlement(payload.signed.entry, flying), flying)
        assert isinstance(event, r.AskFailed)
        payload.reasons.append(f"{ask.peer}: {event.reason}")
        return self._ask_payload(payload)

    def on_step(self, done: r.StepDone, *, now: Monotonic) -> Outcome:
        """Our site has carried out the step under way; `chain` knows of it already."""
        match done:
            case r.DownloadOpened() | r.DownloadFinished():
                assert self._search is not None
                return self._searched(self._search.on_step(done, now=now))
            case r.PayloadRestored():
                return self._restore()
            case r.OwnLeft() if self._can_replay:
                return r.Rebuild(has_way_back=True)
            case r.RebuildRefused(reason):
                self._can_replay, self._refused = False, f" ({reason})"
                return self._seek_snapshot() if self._snapshot is None else self._enter()
            case r.OwnLeft() | r.Rebuilt():
                return self._enter()
            case r.Adopted():
                self._snapshot = None
                return self._replay()
            case r.EntryTaken():
                return self._replay()
            case r.AdoptRefused(reason, is_false):
                return Failed(reason, made_up_by=self._described_by if is_false else ())
            case r.EntryRefused(reason):
                return Failed(reason, is_false=True)
            case _:
                raise AssertionError(f"{type(done).__name__} belongs to no step of a branch that is taken")

    def on_tick(self, *, now: Monotonic) -> Outcome:
        """A deadline has passed."""
        return self._searched(self._search.on_tick(now=now)) if self._search is not None else Asking()

    def way_back(self) -> r.TurnBack | None:
        """What must be undone when nothing more comes of the branch; None: what was taken follows our own entries."""
        own, fork = self._better.own, self.fork
        if not self._is_begun or not own:
            return None
        taken, adopted = self._better.branch.entries[: self._num_taken], self._better.adopted
        is_there = adopted is not None and leads_to(taken, adopted)  # final from now on (R28.7), whatever it weighs
        is_kept = is_there or is_better(Branch(fork, taken), own, self._better.reverted)
        return r.TurnBack(fork, taken, own, is_kept, self._chain.in_flight)

    # --- the way to the tip, before anything is left

    def _seek_snapshot(self) -> Outcome:
        # The state before the first of them is ours, but for that at a fork which our disk cannot make again.
        has_state = self._can_replay or (self._is_begun and self._chain.state_digest is not None)
        left = self._better.branch.entries[self._num_taken + has_state :]
        self._search = SnapshotSearch(left, self._honest, self._sources.limits)
        return self._searched(self._search.start())

    def _searched(self, outcome: SearchOutcome) -> Outcome:
        match outcome:
            case SnapshotFound(offer, sources):
                self._search, self._snapshot, self._described_by = None, offer, sources
                return self._enter() if self._is_begun else self._begin()
            case NoSnapshot(problem):
                self._search = None
                return self._without_snapshot(problem)
            case _:
                return outcome

    def _without_snapshot(self, problem: str) -> Outcome:
        """`problem`: of those that are listed and not given; entries may lead there all the same."""
        if not self._is_begun and self._can_replay:
            return self._begin()
        if not self._is_begun and self._missing:
            return self._restore()
        if self._payload is not None and self._payload.to_ask:
            return self._ask_payload(self._payload)  # of those who were added meanwhile
        if problem:
            return Failed(problem)
        return Failed(self._payload.problem) if self._payload is not None else self._no_state("")

    def _no_state(self, why: str) -> Failed:
        return Failed(
            f"the state at the fork (height {self.fork}) cannot be made from our disk{self._refused or ' any more'},"
            f" and nobody offers a snapshot of the better chain{why}"
        )

    def _restore(self) -> Outcome:
        """The next payload that our disk lacks; with the last one it leads to the fork again."""
        if not self._missing:
            self._can_replay, self._payload = True, None
            return self._begin()
        self._payload = PayloadFetch(self._missing.pop(0), list(self._donors))
        return self._ask_payload(self._payload)

    # --- leaving our branch, adopting, replaying

    def _begin(self) -> Outcome:
        # Until our own entries are left, `chain` still counts them; but then they are left before anything is counted.
        self._is_begun = True
        own = self._better.own
        if not own:
            return self._enter()
        is_adopted, reverted = self._better.adopted is not None, self._better.reverted
        return r.LeaveOwn(self._better.branch, own, self._chain.in_flight, is_adopted, reverted)

    def _enter(self) -> Outcome:
        offer = self._snapshot
        if offer is None:
            return self._replay()
        left = self._better.branch.entries[self._num_taken :]
        num_skipped = offer.round - left[0].entry.round
        skipped, flying = left[:num_skipped], self._chain.in_flight
        settle = next(filter(None, (settlement(signed.entry, flying) for signed in skipped)), None)
        return r.AdoptSnapshot(offer, left[num_skipped].entry, skipped, settle, flying)

    def _replay(self) -> Outcome:
        """The next entry; the branch is complete when there is none."""
        if self._num_taken == len(self._better.branch.entries):
            return Complete()
        signed = self._better.branch.entries[self._num_taken]
        if self._chain.state_digest != signed.entry.state_digest:
            index = signed.entry.round
            return Failed(f"entry {index} was voted for on another state than its chain leads to", is_false=True)
        self._payload = PayloadFetch(signed, list(self._donors))
        return self._ask_payload(self._payload)

    def _ask_payload(self, payload: PayloadFetch) -> Outcome:
        if not payload.to_ask:
            return self._seek_snapshot() if self._is_begun else self._no_state(f", or the {payload.problem}")
        ask = r.AskPayload(UNNUMBERED, payload.to_ask.pop(0), payload.signed)
        return Asking((Question(ask, self._sources.payload_bytes(payload.signed.entry.lowrank_r)),))


def donors_of(peer: PeerId, others: Sequence[PeerId]) -> tuple[PeerId, ...]:
    """Whom to ask for payloads and snapshots of this peer's branch: itself first."""
    return tuple(dict.fromkeys((peer, *others)))
