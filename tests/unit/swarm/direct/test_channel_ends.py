"""A data connection that ends while its reader waits: what came is the answer, whoever still holds its memory."""

import asyncio

from dilocoxd.swarm.direct.channel import Channel
from dilocoxd.swarm.streams.ends import Patience


async def test_reader_of_a_connection_that_ends_gets_what_came_although_tls_holds_the_buffer() -> None:
    """TLS that fails keeps the buffer that it was to fill with its error, for longer than the reader waits."""
    channel = Channel()
    reading = asyncio.ensure_future(channel.read_whole(40, Patience(60.0, 60.0, 60.0), lambda num_bytes: None))
    await asyncio.sleep(0)
    held = channel.get_buffer(-1)
    held[:3] = b"abc"
    channel.buffer_updated(3)
    held = channel.get_buffer(-1)
    channel.abort()
    assert await reading == b"abc"
    assert len(held) == 37
