"""Without rules L8.4 and L9: no chunk is looked at when it comes, and nobody is blamed for a snapshot that is false."""

from typing import Any

from dilocoxd.daemon.recovery import steps
from dilocoxd.store.snapshots import CHUNK_BYTES
from dilocoxd.swarm.streams.chunks import ChunkFetcher


def apply() -> None:
    """What comes is believed until it is loaded, and then the same is asked for again."""
    steps._is_made_up = lambda directory, error: False

    async def fetch(self: Any, donor: Any, number: int, *_: Any) -> None:
        plan, index = self._chunks[number]
        await self._client.fetch_region(donor, plan.resource, plan.chunk(index), offset=index * CHUNK_BYTES)

    ChunkFetcher.fetch = fetch  # type: ignore[method-assign]
