"""A download without a recovery around it: the product's chunk pool over the product's chunk fetcher."""

import asyncio
from collections import Counter
from pathlib import Path

from dilocoxd.daemon.recovery.snapshot_fetch import SnapshotDownload
from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.recovery.chunks import ChunkPool
from dilocoxd.machines.recovery.interface.limits import RecoveryLimits
from dilocoxd.store.snapshots import SnapshotIndex
from dilocoxd.swarm.streams.chunks import ChunkFetcher
from dilocoxd.swarm.streams.fetch import FetchClient
from dilocoxd.swarm.streams.refusals import Refused

Asked = tuple[PeerId, int]


async def download(chunks: ChunkFetcher, donors: list[PeerId]) -> Counter[PeerId]:
    """How many chunks came from whom. Raises PeerError when they cannot be had."""
    clock = asyncio.get_running_loop().time
    pool = ChunkPool(chunks.sizes, donors, RecoveryLimits(), await chunks.present())
    tasks: dict[Asked, asyncio.Task[None]] = {}
    answers: asyncio.Queue[tuple[Asked, Exception | None]] = asyncio.Queue()

    async def ask(asked: Asked) -> None:
        try:
            await chunks.fetch(*asked, lambda: asked in tasks)
            answers.put_nowait((asked, None))
        except (PeerError, WireError) as error:
            answers.put_nowait((asked, error))

    async with asyncio.TaskGroup() as group:
        while not pool.is_complete and not pool.is_hopeless:
            for asked in pool.ask(Monotonic(clock())):
                tasks[asked] = group.create_task(ask(asked))
            try:
                async with asyncio.timeout_at(pool.next_deadline()):
                    (peer, number), error = await answers.get()
            except TimeoutError:
                continue
            if tasks.pop((peer, number), None) is None:
                continue
            if error is not None:
                pool.failed(peer, number, str(error), is_final=isinstance(error, Refused | WireError))
                continue
            for other in pool.came(peer, number, Monotonic(clock())):
                tasks.pop((other, number)).cancel()
        for task in tasks.values():
            task.cancel()
    if pool.is_hopeless:
        raise PeerError(pool.problem)
    return Counter({peer: source.num_given for peer, source in pool.sources.items() if source.num_given})


async def download_snapshot(client: FetchClient, donors: list[PeerId], index: SnapshotIndex, root: Path) -> Path:
    """The directory of the complete snapshot. What an earlier try brought is kept. Raises PeerError, StoreError."""
    found = SnapshotDownload(client, index, root)
    try:
        await found.open()
        await download(found.chunks, donors)
        await found.finish()
        await found.publish()
    finally:
        found.close()
    return found.directory
