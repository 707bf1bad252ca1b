"""Finds the newest snapshot that a branch certifies, and gets it from all who have it. Part of the recovery machine.

What makes a snapshot trustworthy is not its source: its digest must be the one that an entry of the branch was voted
on. Sources: protocol/09-catching-up.md L8, L9, L11.
"""

from collections.abc import Sequence

from dilocoxd.ids import PeerId
from dilocoxd.rounds.chunks import ChunkPool
from dilocoxd.rounds.recovery_events import (
    AskChunk,
    AskFailed,
    AskOffer,
    AskSnapshots,
    ChunkCame,
    CloseDownload,
    DownloadFinished,
    DownloadOpened,
    FinishDownload,
    Offer,
    OfferCame,
    OpenDownload,
    RecoveryEvent,
    RecoveryLimits,
    SnapshotsListed,
    SourceDropped,
)
from dilocoxd.rounds.requests import Asked, Desk
from dilocoxd.wire.entry import SignedEntry

LIST_BYTES = 64 * 1024
OFFER_BYTES = 4 << 20


class SnapshotHunt:
    """One hunt. Over when `is_over`; then `offer` is on disk, or `offer` is None and `problem` says why, if anybody
    had one at all (`problem` is empty when nobody has)."""

    def __init__(
        self, desk: Desk, entries: Sequence[SignedEntry], sources: Sequence[PeerId], limits: RecoveryLimits
    ) -> None:
        self._desk = desk
        self._limits = limits
        self._sources = list(sources)
        self._certified = {int(signed.entry.round): signed.entry for signed in entries[1:]}
        self._holders: dict[int, list[PeerId]] = {}
        self._offers: dict[PeerId, Offer] = {}
        self._waiting: set[int] = set()
        self._chosen: Offer | None = None
        self.pool: ChunkPool | None = None
        self.offer: Offer | None = None
        self.problem = ""
        self.is_over = False
        for peer in self._sources:
            asked = desk.asked(peer, "its list of snapshots", 0, limits.patience_s(LIST_BYTES))
            self._waiting.add(desk.ask(asked, lambda number, peer=peer: AskSnapshots(number, peer)))  # type: ignore[misc]
        self._choose_when_ready()

    @property
    def state(self) -> str:
        return "choosing" if self._chosen is None else "fetching_chunks"

    @property
    def text(self) -> str:
        """What is waited for."""
        if self._chosen is None:
            return "the newest snapshot"
        size = f"snapshot {self._chosen.round} ({self._chosen.num_bytes} bytes"
        return f"{size}, {len(self.pool.left)} chunks to go)" if self.pool is not None else f"{size})"

    def handle(self, asked: Asked | None, event: RecoveryEvent) -> None:
        """`asked`: the question that the event answers; None for steps and ticks."""
        if asked is not None:
            self._note(asked, event)
        elif isinstance(event, DownloadOpened) and self._chosen is not None:
            self._open(self._chosen, event.present)
        elif isinstance(event, DownloadFinished):
            self.offer, self.is_over = self._chosen, True
        self._waiting &= self._desk.open.keys()
        if self.pool is not None:
            self._drive(self.pool)
        elif self._chosen is None:
            self._choose_when_ready()

    def _note(self, asked: Asked, event: RecoveryEvent) -> None:
        match event:
            case SnapshotsListed():
                for number in event.rounds:
                    self._holders.setdefault(number, []).append(asked.peer)
            case OfferCame() if event.offer.round == asked.number:
                self._offers[asked.peer] = event.offer
            case ChunkCame() if self.pool is not None:
                self._cancel_chunk(self.pool.came(asked.peer, asked.number, self._desk.now), asked.number)
            case AskFailed() if self.pool is not None:
                self._chunk_failed(self.pool, asked, event)
            case _:
                pass

    def _choose_when_ready(self) -> None:
        """All lists, or all indexes of one round, are in."""
        if self._waiting:
            return
        if self._offers:
            self._chosen = next(self._offers[peer] for peer in self._sources if peer in self._offers)
            self._desk.emit(OpenDownload(self._chosen))
            return
        found = sorted(self._holders.keys() & self._certified.keys(), reverse=True)
        if not found:
            self.is_over = True
            return
        holders = dict.fromkeys(self._holders.pop(found[0]))
        for peer in holders:
            asked = self._desk.asked(peer, "its snapshot's index", found[0], self._limits.patience_s(OFFER_BYTES))
            entry = self._certified[found[0]]
            self._waiting.add(self._desk.ask(asked, lambda number, p=peer, e=entry: AskOffer(number, p, e)))  # type: ignore[misc]

    def _open(self, chosen: Offer, present: frozenset[int]) -> None:
        # A fork that lost may lie under the same number at others: its chunks would be wrong.
        peers = [peer for peer in self._sources if self._offers.get(peer) == chosen]
        self.pool = ChunkPool(chosen.chunk_bytes, peers, self._limits, present)

    def _drive(self, pool: ChunkPool) -> None:
        if pool.is_complete:
            self._desk.emit(FinishDownload(self._chosen))  # type: ignore[arg-type]
            self.pool = None
        elif pool.is_hopeless:
            self.problem, self.is_over = f"snapshot {self._chosen.round}: {pool.problem}", True  # type: ignore[union-attr]
            self._desk.emit(CloseDownload())
        else:
            for peer, number in pool.ask(self._desk.now):
                asked = self._desk.asked(peer, "a chunk", number, pool.patience_s(number))
                self._desk.ask(asked, lambda request, p=peer, n=number: AskChunk(request, p, n))  # type: ignore[misc]

    def _cancel_chunk(self, peers: tuple[PeerId, ...], number: int) -> None:
        for request, asked in list(self._desk.open.items()):
            if asked.peer in peers and asked.number == number:
                self._desk.cancel(request)

    def _chunk_failed(self, pool: ChunkPool, asked: Asked, event: AskFailed) -> None:
        pool.failed(asked.peer, asked.number, event.reason, is_final=event.is_final or event.is_wrong)
        if event.is_wrong:
            self._desk.emit(SourceDropped(asked.peer, event.reason))
            for request, other in list(self._desk.open.items()):
                if other.peer == asked.peer:
                    self._desk.cancel(request)
                    pool.failed(other.peer, other.number, event.reason, is_final=True)
