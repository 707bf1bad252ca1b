"""Many at once: raw connections with garbage, and keys that hold half of as many large frames as they are let."""

import asyncio
import contextlib
import random
from pathlib import Path

from dilocoxd.errors import PeerError
from dilocoxd.swarm.streams.streams import PROTOCOL_MESSAGE
from dilocoxd.wire.frames import FrameKind, encode_prelude
from dilocoxd.wire.messages import PEER_MESSAGES
from tests.adversary.stranger import Stranger, stranger
from tests.harness.running.sites import SiteProcess

PARALLEL = 32
FRAME_BYTES = 1000 * 1024
"""Of which all but the last byte is sent."""
STEP_BYTES = 64 * 1024


async def throw_garbage(victim: SiteProcess, number: int) -> None:
    """So many TCP connections one after another, PARALLEL at a time: each sends noise and leaves."""
    _, _, host, _, port, *_ = str(victim.state()["join_address"]).split("/")
    rng, slots = random.Random(number), asyncio.Semaphore(PARALLEL)

    async def throw(noise: bytes) -> None:
        async with slots:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):
                    _, writer = await asyncio.open_connection(host, int(port))
                    writer.write(noise)
                    await writer.drain()
                    writer.close()

    async with asyncio.TaskGroup() as group:
        for index in range(number):
            group.create_task(throw(rng.randbytes(2048)), name=f"garbage {index}")


async def hold_frames(folder: Path, victim: SiteProcess, keys: int, frames: int) -> None:
    """`keys` strangers of the victim's run each send all but the end of `frames` messages, then all leave."""
    async with contextlib.AsyncExitStack() as stack:
        crowd = [
            await stack.enter_async_context(stranger(folder / str(number), victim, p2pd_memory_mib=32))
            for number in range(keys)
        ]
        async with asyncio.TaskGroup() as group:
            for me in crowd:
                group.create_task(_hold(me, victim, frames), name="holder")


async def _hold(me: Stranger, victim: SiteProcess, frames: int) -> None:
    peer = await me.meet(victim)
    body, held = bytes(FRAME_BYTES), []
    for _ in range(frames):
        with contextlib.suppress(PeerError, OSError, TimeoutError):
            async with asyncio.timeout(5):
                reader, writer = await me.node.open_stream(peer, PROTOCOL_MESSAGE)
                hello = PEER_MESSAGES.encode(me.gate.hello())
                writer.write(encode_prelude(FrameKind.HELLO, [hello]) + hello)
                writer.write(encode_prelude(FrameKind.MESSAGE, [body]))
                for start in range(0, FRAME_BYTES - 1, STEP_BYTES):
                    writer.write(body[start : min(start + STEP_BYTES, FRAME_BYTES - 1)])
                    await writer.drain()
                held.append((reader, writer))
