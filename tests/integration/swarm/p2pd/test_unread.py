"""A peer that opens streams and reads nothing of what it asked for: neither the daemon nor its p2pd keeps them."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.unread import UNREAD_MAX
from dilocoxd.swarm.streams.fetch import FetchServer, Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import PROTOCOL_FETCH, FrameStream
from dilocoxd.wire.frames import FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, Fetch
from tests.integration.swarm.sites import RUN, Site, memory, sites, until

pytestmark = pytest.mark.processes

STREAMS = UNREAD_MAX + 4
LARGE = 8 << 20
"""More than the windows of a libp2p stream and the buffers of two sockets hold."""
SPARE = 4
"""Files that come and go by themselves."""


def files_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def ask_and_read_nothing(site: Site, victim: Site) -> asyncio.StreamWriter:
    reader, writer = await site.node.open_stream(victim.peer_id, PROTOCOL_FETCH)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # it reads as well
    stream = FrameStream(victim.peer_id, reader, writer)
    await stream.write(FrameKind.HELLO, PEER_MESSAGES.encode(site.gate.hello()))
    await stream.write(FrameKind.FETCH, PEER_MESSAGES.encode(Fetch(str(RUN), "large", 0, 0)))
    return writer


async def look_until(victim: Site, before: Sequence[int], num_own: int) -> None:
    """As the p2pd supervisor does, until there are no more files than before, but for those of the peer itself."""

    async def is_over() -> bool:
        await victim.node.end_unread((await victim.node.connections()).keys())
        found = files_of(os.getpid()) - num_own, files_of(victim.node.p2pd_pid)
        return all(now <= then + SPARE for now, then in zip(found, before, strict=True))

    await until(is_over, "the files of streams that nobody reads are closed", 60)


async def test_streams_that_are_never_read_keep_no_descriptor(tmp_path: Path) -> None:
    with memory(LARGE, seed=1) as region:

        async def open_resource(peer: PeerId, name: str) -> Served:
            return Served(Region(region.fd, 0, LARGE), bytes(32), lambda: None)

        async with sites(tmp_path, 2) as (victim, peer):
            victim.gate.progress_timeout_s = 1.0
            await victim.serve(PROTOCOL_FETCH, FetchServer(open_resource).serve)
            await peer.meet(victim)
            before = files_of(os.getpid()), files_of(victim.node.p2pd_pid)
            held = [await ask_and_read_nothing(peer, victim) for _ in range(STREAMS)]
            await until(lambda: not victim.gate.room.num_streams, "all of them are given up")
            await look_until(victim, before, STREAMS)
            for writer in held:
                writer.transport.abort()
