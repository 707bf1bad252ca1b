"""Finds the newest snapshot that a branch certifies, and gets it from all who have it. Part of the recovery machine.

What makes a snapshot trustworthy is not its source: its digest must be the one that an entry of the branch was voted
on. Sources: protocol/09-catching-up.md L8, L9, L11.
"""

from collections import Counter
from collections.abc import Sequence

from dilocoxd.answers.words import in_bytes
from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.machines.recovery.chunks import ChunkPool
from dilocoxd.machines.recovery.outcomes import (
    UNNUMBERED,
    Asking,
    NoSnapshot,
    Question,
    SearchOutcome,
    SnapshotFound,
)
from dilocoxd.wire.entry import SignedEntry

LIST_BYTES = 64 * 1024
OFFER_BYTES = 4 << 20


class SnapshotSearch:
    """One search among `sources`, best first, for a state before one of `entries`. Ends with SnapshotFound or
    NoSnapshot."""

    def __init__(self, entries: Sequence[SignedEntry], sources: Sequence[PeerId], limits: r.RecoveryLimits) -> None:
        self._limits = limits
        self._sources = tuple(sources)
        self._certified = {int(signed.entry.round): signed.entry for signed in entries}
        self._unanswered = set(sources)
        """Sources whose list, later whose index, is waited for."""
        self._holders: dict[int, list[PeerId]] = {}
        """Round -> who serves its snapshot; rounds that have been tried are gone."""
        self._offers: dict[PeerId, r.Offer] = {}
        self._refusals: Counter[PeerId] = Counter()
        """Listed snapshots that a source did not give."""
        self._chosen: r.Offer | None = None
        self._pool: ChunkPool | None = None
        self._problems: list[str] = []
        """Of snapshots that were described and not given."""

    @property
    def num_sources(self) -> int:
        return len(self._sources)

    @property
    def is_fetching(self) -> bool:
        """Chunks are asked for."""
        return self._pool is not None

    @property
    def text(self) -> str:
        """What is waited for."""
        if self._chosen is None:
            return "the newest snapshot"
        if self._pool is None:
            return f"snapshot {self._chosen.round} ({in_bytes(self._chosen.num_bytes)})"
        here = self._chosen.num_bytes - sum(self._chosen.chunk_bytes[number] for number in self._pool.left)
        share = f"{here / max(1, self._chosen.num_bytes):.0%}"
        return f"snapshot {self._chosen.round} ({in_bytes(here)} of {in_bytes(self._chosen.num_bytes)}, {share})"

    def next_deadline(self) -> Monotonic | None:
        """When `on_tick` may have something to ask, besides the deadlines of questions."""
        return self._pool.next_deadline() if self._pool is not None else None

    def start(self) -> SearchOutcome:
        """Everybody's list."""
        if not self._sources:
            return NoSnapshot()
        return Asking(tuple(Question(r.AskSnapshots(UNNUMBERED, peer), LIST_BYTES) for peer in self._sources))

    def on_answer(self, ask: r.Ask, event: r.Answer, *, now: Monotonic) -> SearchOutcome:
        """`ask`: the question that the event answers."""
        if isinstance(ask, r.AskChunk):
            return self._on_chunk(ask, event, now)
        self._unanswered.discard(ask.peer)
        match ask, event:
            case r.AskSnapshots(), r.SnapshotsListed(_, rounds):
                for number in rounds:
                    self._holders.setdefault(number, []).append(ask.peer)
            case r.AskOffer(), r.OfferCame(_, offer) if offer.round == ask.certified_by.round:
                self._offers[ask.peer] = offer
            case r.AskOffer(), r.AskFailed():
                self._refusals[ask.peer] += 1
                # It may have dropped one snapshot meanwhile; but who is silent, or lists what it has not, delays us.
                if event.is_wrong or not event.is_final or self._refusals[ask.peer] > 1:
                    self._leave(ask.peer)
            case _:
                pass
        return Asking() if self._unanswered else self._choose()

    def _leave(self, peer: PeerId) -> None:
        """It is no source any more."""
        for number, holders in list(self._holders.items()):
            self._holders[number] = [one for one in holders if one != peer]
            if not self._holders[number]:
                del self._holders[number]

    def on_step(self, done: r.DownloadOpened | r.DownloadFinished, *, now: Monotonic) -> SearchOutcome:
        """The place for the download is there, or the download is whole."""
        chosen = self._chosen
        assert chosen is not None
        if isinstance(done, r.DownloadFinished):
            return SnapshotFound(chosen, self._holders_of(chosen))
        # A fork that lost may lie under the same number at others: its chunks would be wrong.
        self._pool = ChunkPool(chosen.chunk_bytes, self._holders_of(chosen), self._limits, done.present)
        return self._fetch(chosen, self._pool, now)

    def _holders_of(self, chosen: r.Offer) -> tuple[PeerId, ...]:
        return tuple(peer for peer in self._sources if self._offers.get(peer) == chosen)

    def on_tick(self, *, now: Monotonic) -> SearchOutcome:
        """A chunk may be late by now."""
        if self._chosen is None or self._pool is None:
            return Asking()
        return self._fetch(self._chosen, self._pool, now)

    def _choose(self) -> SearchOutcome:
        """All lists, or all indexes of one round, are in."""
        if self._offers:
            offered = [self._offers[peer] for peer in self._sources if peer in self._offers]
            # What most sources describe alike; among equals the best source's.
            self._chosen = max(offered, key=offered.count)
            return r.OpenDownload(self._chosen)
        newest = max(self._holders.keys() & self._certified.keys(), default=None)
        if newest is None:
            return NoSnapshot("; ".join(self._problems))
        holders = dict.fromkeys(self._holders.pop(newest))
        self._unanswered = set(holders)
        entry = self._certified[newest]
        return Asking(tuple(Question(r.AskOffer(UNNUMBERED, peer, entry), OFFER_BYTES) for peer in holders))

    def _on_chunk(self, ask: r.AskChunk, event: r.Answer, now: Monotonic) -> SearchOutcome:
        pool, superseded = self._pool, frozenset[tuple[PeerId, int]]()
        assert pool is not None and self._chosen is not None, "chunks of a download that was left are withdrawn"
        if isinstance(event, r.AskFailed) and event.is_wrong:
            pool.drop(ask.peer, ask.number, event.reason)
        elif isinstance(event, r.AskFailed):
            pool.failed(ask.peer, ask.number, event.reason, is_final=event.is_final)
        elif isinstance(event, r.ChunkCame):
            superseded = frozenset((peer, ask.number) for peer in pool.came(ask.peer, ask.number, now))
        return self._fetch(self._chosen, pool, now, superseded)

    def _without(self, chosen: r.Offer, pool: ChunkPool) -> SearchOutcome:
        """Those who describe it do not give it: else one that lists the newest would keep us from all older ones."""
        self._problems.append(f"snapshot {chosen.round}: {pool.problem}")
        for peer in pool.sources:
            self._leave(peer)
            del self._offers[peer]
        self._chosen = self._pool = None
        return self._choose()

    def _fetch(
        self,
        chosen: r.Offer,
        pool: ChunkPool,
        now: Monotonic,
        superseded: frozenset[tuple[PeerId, int]] = frozenset(),
    ) -> SearchOutcome:
        if pool.is_complete:
            self._pool = None
            return r.FinishDownload(chosen)
        if pool.is_hopeless:
            return self._without(chosen, pool)
        wanted = [
            Question(r.AskChunk(UNNUMBERED, peer, number), chosen.chunk_bytes[number]) for peer, number in pool.ask(now)
        ]
        return Asking(tuple(wanted), superseded)
