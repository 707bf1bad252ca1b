"""Streams that a peer never reads count for as long as p2pd keeps them, and until its connection was ended."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.unread import UNREAD_MAX, UnreadStreams

PEER = PeerId("a peer")
LARGE = 4 << 20
"""More than a local socket holds."""


@contextlib.asynccontextmanager
async def closed_unread(streams: UnreadStreams, number: int) -> AsyncIterator[None]:
    """So many streams of PEER, closed with something left that nobody reads."""
    pairs = [socket.socketpair() for _ in range(number)]
    for ours, _ in pairs:
        _, writer = await asyncio.open_connection(sock=ours)
        streams.note(PEER, writer)
        writer.write(bytes(LARGE))
        writer.close()
    yield
    for _, theirs in pairs:
        theirs.close()


async def test_a_peer_is_told_of_until_its_connection_has_been_ended() -> None:
    """To end it may fail; what was counted was lost then, also of all peers behind it."""
    streams = UnreadStreams()
    async with closed_unread(streams, UNREAD_MAX + 1):
        assert [streams.look({PEER}) for _ in range(3)] == [[], [PEER], [PEER]]
        streams.forget(PEER)
        assert streams.look({PEER}) == []


async def test_what_p2pd_kept_for_an_earlier_connection_does_not_count() -> None:
    streams = UnreadStreams()
    async with closed_unread(streams, UNREAD_MAX):
        assert [streams.look({PEER}) for _ in range(2)] == [[], []]
    assert streams.look(set()) == []
    async with closed_unread(streams, UNREAD_MAX):
        assert [streams.look({PEER}) for _ in range(2)] == [[], []]
