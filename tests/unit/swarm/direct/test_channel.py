"""Bytes of a data connection: what was read stays as it is while somebody looks at it, and its memory serves again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.channel import BLOCK_BYTES, SPARE_MAX, WHOLE_BYTES, Channel, SpareBuffers
from dilocoxd.swarm.direct.links import accept_link, open_link
from dilocoxd.swarm.direct.sockets import listen_on
from dilocoxd.swarm.discovery.identity import Identity, create
from dilocoxd.swarm.streams.ends import Patience
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK

LONG_S = 60.0
"""Nothing that is tested may take as long."""
PATIENT = Patience(LONG_S, LONG_S, LONG_S)

Work = Callable[[Channel, Channel], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Identity, Identity]:
    folder = tmp_path_factory.mktemp("keys")
    return create(folder / "a.key"), create(folder / "b.key")


@contextlib.asynccontextmanager
async def linked(a: Identity, b: Identity) -> AsyncIterator[tuple[Channel, Channel]]:
    """Both ends of a connection that A opens to B."""
    ours, theirs = Credentials(a), Credentials(b)
    server = theirs.server_context()
    server.load_verify_locations(cadata=theirs.anchor(a.peer_id, a.public_key_der))
    client = ours.client_context((ours.anchor(b.peer_id, b.public_key_der),), PROTOCOL_BULK)
    (listening,) = listen_on(["127.0.0.1"], 0)
    with listening:
        port = listening.getsockname()[1]
        opening = asyncio.create_task(open_link("127.0.0.1", port, client, timeout_s=LONG_S))
        conn, _ = await asyncio.get_running_loop().sock_accept(listening)
        accepted, opened = await accept_link(conn, server), await opening
    try:
        yield opened.channel, accepted.channel
    finally:
        opened.abort()
        accepted.abort()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def between(request: pytest.FixtureRequest, identities: tuple[Identity, Identity]) -> Callable[[Work], None]:
    """Runs this with both ends of a connection."""

    async def run(work: Work) -> None:
        async with asyncio.timeout(LONG_S), linked(*identities) as (a, b):
            await work(a, b)

    def runs(work: Work) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(run(work))

    return runs


async def whole(channel: Channel, length: int) -> Any:
    return await channel.read_whole(length, PATIENT, lambda num_bytes: None)


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.001)


def test_frames_that_came_together_are_read_one_by_one(between: Callable[[Work], None]) -> None:
    async def work(a: Channel, b: Channel) -> None:
        a.writelines(bytes([number]) * 1000 for number in range(20))
        await until(lambda: b.is_over)
        for number in range(20):
            assert await whole(b, 1000) == bytes([number]) * 1000
        a.write(b"next")
        assert await whole(b, 4) == b"next"
        assert not b.is_over

    between(work)


def test_piece_that_somebody_looks_at_stays_as_it_is(
    between: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dilocoxd.swarm.direct.channel._SPARE", SpareBuffers())

    async def work(a: Channel, b: Channel) -> None:
        for number in range(4):
            a.write(bytes([number]) * WHOLE_BYTES)
        first, second = await whole(b, WHOLE_BYTES), await whole(b, WHOLE_BYTES)
        assert (first, second) == (bytes(WHOLE_BYTES), b"\x01" * WHOLE_BYTES)
        part, memory = first[-5:], first.obj
        first.release()  # as a thread that still writes the end of it
        third = await whole(b, WHOLE_BYTES)
        assert third.obj is not memory
        assert part == bytes(5)
        part.release()
        assert (await whole(b, WHOLE_BYTES)).obj is memory
        assert (second, third) == (b"\x01" * WHOLE_BYTES, b"\x02" * WHOLE_BYTES)

    between(work)


def test_memory_is_kept_ready_for_a_quarter_of_a_piece_until_that_is_here(between: Callable[[Work], None]) -> None:
    async def work(a: Channel, b: Channel) -> None:
        held: list[int] = []
        reading = asyncio.create_task(b.read_whole(WHOLE_BYTES, PATIENT, held.append))
        a.write(bytes(BLOCK_BYTES - 1))
        await until(lambda: b._filled == BLOCK_BYTES - 1)
        assert (held, len(b._data)) == ([BLOCK_BYTES], BLOCK_BYTES)
        a.write(bytes(1))
        await until(lambda: b._filled == BLOCK_BYTES)
        assert (held, len(b._data)) == ([BLOCK_BYTES, WHOLE_BYTES - BLOCK_BYTES], WHOLE_BYTES)
        a.write(bytes(WHOLE_BYTES - BLOCK_BYTES))
        assert await reading == bytes(WHOLE_BYTES)

    between(work)


def test_spare_buffers_are_few() -> None:
    spare = SpareBuffers()
    taken = [spare.take(WHOLE_BYTES) for _ in range(SPARE_MAX + 4)]
    for buffer in taken:
        spare.give(buffer)
        spare.give(bytearray(WHOLE_BYTES - 1))
    again = [spare.take(WHOLE_BYTES) for _ in range(SPARE_MAX + 4)]
    assert [any(one is buffer for buffer in taken) for one in again] == [True] * SPARE_MAX + [False] * 4
    assert spare.take(WHOLE_BYTES + 1) == bytes(WHOLE_BYTES + 1)
    assert all(len(one) == WHOLE_BYTES for one in again)
