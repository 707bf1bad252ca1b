"""Carries out the recovery machine's questions to other peers: each a task, each answered once.

Bytes that arrive are checked here against the hashes that name them; what follows from an answer is not decided here.
"""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from dilocoxd.answers.words import in_bytes
from dilocoxd.daemon.chain.ledger import Ledger
from dilocoxd.daemon.recovery.chain_fetch import check_payload, fetch_entries
from dilocoxd.daemon.recovery.snapshot_fetch import SnapshotDownload, fetch_index, list_of
from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.machines.recovery import interface as r
from dilocoxd.store.snapshots import SnapshotIndex
from dilocoxd.swarm.streams.fetch import FetchClient, OnBytes
from dilocoxd.swarm.streams.pace import AnswerPace
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.refusals import Refused

START_S: Final = 60.0
"""So long a source may give nothing of an answer; the machine's own patience is for the whole of the largest one."""
BYTES_PER_S_MIN: Final = 32 * 1024


class Questions:
    """Questions of one recovery, and what their answers left here: payloads in memory, the open download."""

    def __init__(self, group: asyncio.TaskGroup, client: FetchClient, ledger: Ledger, snapshots: Path) -> None:
        self._group = group
        self._client = client
        self._ledger = ledger
        self._snapshots = snapshots
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._indexes: dict[bytes, SnapshotIndex] = {}
        self._offered_by: dict[bytes, dict[PeerId, None]] = {}
        """Key of an offer -> who described the snapshot so."""
        self._payloads: dict[int, int] = {}
        self._branch_of: PeerId | None = None
        """Whom entries were asked of last: one peer's branch is looked at at a time."""
        self.answers: asyncio.Queue[r.RecoveryEvent] = asyncio.Queue()
        self.download: SnapshotDownload | None = None

    def ask(self, question: r.Ask) -> None:
        """Its answer comes to `answers`."""
        task = self._group.create_task(self._answer(question), name=f"recovery asks {question.peer}")
        self._tasks[question.request] = task

        if isinstance(question, r.AskEntries):
            self._branch_of = question.peer

    def blame(self, error: WireError) -> None:
        """The branch that is looked at is not what its peer said."""
        assert self._branch_of is not None
        self._client.on_bad(self._branch_of, error)

    def blame_offer(self, offer: r.Offer, error: WireError) -> None:
        """The snapshot is not what those who described it said."""
        for peer in self._offered_by[offer.key]:
            self._client.on_bad(peer, error)

    def cancel(self, request: int) -> None:
        """No answer is wanted."""
        task = self._tasks.pop(request, None)
        if task is not None:
            task.cancel()

    async def _answer(self, question: r.Ask) -> None:
        """Raises StoreError when our own disk fails."""
        try:
            answer = await self._steadily(question)
        except (PeerError, WireError) as error:
            is_wrong = isinstance(error, WireError)
            answer = r.AskFailed(question.request, str(error), is_wrong or isinstance(error, Refused), is_wrong)
        if self._tasks.pop(question.request, None) is not None:
            self.answers.put_nowait(answer)

    async def _steadily(self, question: r.Ask) -> r.Answer:
        """The answer. Raises PeerError too where it comes more slowly than BYTES_PER_S_MIN (L16)."""
        pace = AnswerPace(START_S, BYTES_PER_S_MIN)
        try:
            async with pace.begin():
                return await self._work(question, pace)
        except TimeoutError:
            given = in_bytes(pace.bytes_received)
            raise PeerError(f"{question.peer} gave {given} of what it was asked for, then too little in time") from None

    def _work(self, question: r.Ask, pace: AnswerPace) -> Coroutine[Any, Any, r.Answer]:
        match question:
            case r.AskEntries():
                return self._entries(question, pace.came)
            case r.AskSnapshots():
                return self._rounds(question)
            case r.AskOffer():
                return self._offer(question)
            case r.AskChunk():
                return self._chunk(question, pace.came)
            case r.AskPayload():
                return self._payload(question, pace)

    async def _entries(self, question: r.AskEntries, on_bytes: OnBytes) -> r.Answer:
        entries = await fetch_entries(self._client, question.peer, question.first, on_bytes)
        return r.EntriesCame(question.request, entries)

    async def _rounds(self, question: r.AskSnapshots) -> r.Answer:
        return r.SnapshotsListed(question.request, tuple(await list_of(self._client, question.peer)))

    async def _offer(self, question: r.AskOffer) -> r.Answer:
        index = await fetch_index(self._client, question.peer, question.certified_by, self._ledger.payloads.numel)
        key = hashlib.sha256(repr(index.files).encode()).digest()
        self._indexes.setdefault(key, index)
        self._offered_by.setdefault(key, {})[question.peer] = None
        sizes = tuple(file.chunk_length(chunk) for file in index.files for chunk in range(len(file.chunks)))
        return r.OfferCame(question.request, r.Offer(index.round, key, sizes))

    async def _chunk(self, question: r.AskChunk, on_bytes: OnBytes) -> r.Answer:
        assert self.download is not None

        def is_wanted() -> bool:
            return question.request in self._tasks

        await self.download.chunks.fetch(question.peer, question.number, is_wanted, on_bytes)
        return r.ChunkCame(question.request)

    async def _payload(self, question: r.AskPayload, pace: AnswerPace) -> r.Answer:
        entry = question.signed.entry
        payloads = self._ledger.payloads.at(entry.lowrank_r)
        fd = os.memfd_create(f"payload-{entry.round}", os.MFD_CLOEXEC)
        try:
            region = Region(fd, 0, payloads.total_bytes)
            await self._client.fetch_region(question.peer, f"payload/{entry.round}", region, on_bytes=pace.came)
            pace.is_whole()
            await asyncio.to_thread(check_payload, fd, payloads.lengths, entry)
            self._payloads[question.request], fd = fd, -1
        finally:
            if fd >= 0:
                os.close(fd)
        return r.PayloadCame(question.request)

    @contextlib.contextmanager
    def payload(self, request: int) -> Any:
        """Descriptor of the payload that this question brought; closed afterwards."""
        fd = self._payloads.pop(request)
        try:
            yield fd
        finally:
            os.close(fd)

    def open_download(self, offer: r.Offer) -> SnapshotDownload:
        """The download of what this offer describes."""
        self.close_download()
        self.download = SnapshotDownload(self._client, self._indexes[offer.key], self._snapshots)
        return self.download

    def close_download(self) -> None:
        if self.download is not None:
            self.download.close()
            self.download = None

    def close(self) -> None:
        """The recovery is over, or our own site has failed."""
        for request in list(self._tasks):
            self.cancel(request)
        self.close_download()
        for request in list(self._payloads):
            with self.payload(request):
                pass
