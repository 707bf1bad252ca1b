"""A site reduced to its network part: real p2pd, real DHT, real streams on loopback."""

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.discovery.records import RecordBook, sign_record
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.swarm.p2pd.settings import NodeSettings
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import Admits, ServeStream, StreamGate, unix_ms
from dilocoxd.wire.messages import PROTOCOL_MAJOR, SegmentHeader
from dilocoxd.wire.records import PeerRecord
from tests.reference.state_digest import EMPTY_DIGEST

RUN = RunId("test-0123456789abcdef")


@dataclass
class Site:
    identity: identity.Identity
    node: Node
    guard: PeerGuard
    gate: StreamGate
    book: RecordBook
    sequence: int = 0

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    async def serve(self, protocol: str, handler: ServeStream, *, admits: Admits = "members") -> None:
        async def accept(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.gate.serve(handler, peer, reader, writer, admits=admits)

        await self.node.set_handler(protocol, accept)

    async def meet(self, other: "Site") -> None:
        await self.node.connect(other.peer_id, await other.node.addresses())

    def record(self, **changes: object) -> bytes:
        self.sequence += 1
        fields: dict[str, object] = {
            "peer": self.peer_id, "run_id": RUN, "protocol_major": PROTOCOL_MAJOR, "protocol_minor": 0,
            "incarnation": 1, "sequence": self.sequence, "unix_ms": unix_ms(), "ttl_ms": 30_000,
            "state": "training", "addresses": (), "chain_head": EMPTY_DIGEST, "chain_height": 0, "chain_weight": 0,
            "state_digest": EMPTY_DIGEST, "contributed_round": -1, "milli_steps_per_s": 0, "tokens_per_s": 0,
            "upload_bytes_per_s": 0,
        }  # fmt: skip
        return sign_record(self.identity, PeerRecord(**{**fields, **changes}))  # type: ignore[arg-type]


def dht_size(node: Node) -> int:
    """Peers in its routing table."""
    return len(node._dht.protocol.routing_table.peer_id_to_uid) if node._dht is not None else 0


async def start_site(folder: Path, *, run_id: RunId | None = RUN, listen: str = "/ip4/127.0.0.1/tcp/0") -> Site:
    folder.mkdir(parents=True, exist_ok=True)
    key = identity.load_or_create(folder / "identity.key")
    guard = PeerGuard(asyncio.get_running_loop().time)
    book = RecordBook(key.peer_id, RUN)
    settings = NodeSettings(key.path, folder / "sockets", (listen,), hint_key=str(RUN))
    node = Node(
        settings,
        lambda data, expiration: book.check_hint(data, expiration, unix_ms()),
        lambda code: guard.count("dht", code),
    )
    await node.start()
    return Site(key, node, guard, StreamGate(node, run_id, guard), book)


@contextlib.asynccontextmanager
async def sites(folder: Path, number: int) -> AsyncIterator[list[Site]]:
    """`number` sites that do not know each other yet."""
    started: list[Site] = []
    try:
        for index in range(number):
            started.append(await start_site(folder / f"site{index}"))
        yield started
    finally:
        for site in started:
            await site.node.shutdown()


async def until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], what: str, timeout_s: float = 60
) -> None:
    """Poll until the condition holds; the time-out only ends a test that has failed."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if await result if isinstance(result, Awaitable) else result:
            return
        assert time.monotonic() < deadline, f"not reached in {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def memory(length: int, *, seed: int | None = None) -> Iterator[Region]:
    fd = os.memfd_create("payload")
    try:
        os.ftruncate(fd, length)
        if seed is not None:
            block = hashlib.shake_256(seed.to_bytes(8, "big")).digest(1 << 20)
            for start in range(0, length, len(block)):
                os.pwrite(fd, block[: length - start], start)
                block = block[1:] + block[:1]
        yield Region(fd, 0, length)
    finally:
        os.close(fd)


async def header_of(region: Region, *, segment: int = 0, sha256: bytes | None = None) -> SegmentHeader:
    digest = sha256 if sha256 is not None else await region.sha256()
    return SegmentHeader(str(RUN), 0, 0, 0, 0, segment, 0, region.length, 0, region.length, digest, bytes(32), ())  # type: ignore[arg-type]
