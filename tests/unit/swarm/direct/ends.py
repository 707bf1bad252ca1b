"""Two ends of data connections over loopback, without a p2pd."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.links import DataLink
from dilocoxd.swarm.direct.listener import DataListener
from dilocoxd.swarm.direct.plane import DataPlane
from dilocoxd.swarm.direct.sockets import listen_on
from dilocoxd.swarm.discovery.identity import Identity, create
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.streams import FrameStream, ServeStream, StreamGate
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind
from dilocoxd.wire.messages import Hello, SegmentHeader

RUN = RunId("test-0123456789abcdef")
NUM_PIECES = 8
HEADER = SegmentHeader(
    run_id=RUN,
    round=0,
    attempt=0,
    kind=0,
    pass_index=0,
    segment=0,
    phase=0,
    segment_bytes=NUM_PIECES * PIECE_BYTES,
    offset=0,
    piece_bytes=NUM_PIECES * PIECE_BYTES,
    segment_sha256=bytes(32),
    root=bytes(32),
    proof=(),
)


class NoStreams:
    """A p2pd that opens no stream, and counts how often it was asked for one."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def open_stream(
        self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.num_asked += 1
        raise PeerError("by p2pd")


class End:
    """One side: gate and data plane over loopback, without a p2pd."""

    def __init__(self, identity: Identity, most: int) -> None:
        self.identity, self.node = identity, NoStreams()
        self.gate = StreamGate(self.node, RUN, PeerGuard(lambda: 0.0))
        self.accepted: list[DataLink] = []
        credentials = Credentials(identity)
        self.listener = DataListener(listen_on(["127.0.0.1"], 0), credentials, self._serve)
        self.keys: dict[PeerId, bytes] = {}
        self.plane = DataPlane(credentials, self.listener, self._hosts, self._key_of, str(RUN), most)
        self.gate.data = self.plane
        self.answer: ServeStream = self._answer

    async def _hosts(self, peer: PeerId) -> list[str]:
        return ["127.0.0.1"]

    def _key_of(self, peer: PeerId) -> bytes:
        return self.keys.get(peer, b"")

    async def _serve(self, peer: PeerId, protocol: str, link: DataLink, network: str) -> None:
        self.accepted.append(link)
        answer: ServeStream = lambda stream, hello: self.answer(stream, hello)  # noqa: E731 - as it is by then
        await self.gate.serve(answer, peer, link.channel, link.channel, data_from=network)

    async def _answer(self, stream: FrameStream, hello: Hello) -> None:
        await stream.read(FrameKind.OFFER)
        await stream.write(FrameKind.HOLDING, b"")


@contextlib.asynccontextmanager
async def two(folder: Path, most: int = 8) -> AsyncIterator[tuple[End, End]]:
    """A, and B to which A has a data connection that rests, and `most` at most."""
    a, b = End(create(folder / "a.key"), most), End(create(folder / "b.key"), most)
    both = {a.identity.peer_id, b.identity.peer_id}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(end.plane.run(lambda: both)) for end in (a, b)]
        for one, other in ((a, b), (b, a)):
            other.keys[one.identity.peer_id] = one.identity.public_key_der
            other.plane.meet(one.identity.peer_id, one.listener.port)
        async with asyncio.timeout(60):
            while not a.plane.view(b.identity.peer_id).is_data:
                await asyncio.sleep(0.01)
        yield a, b
        for task in tasks:
            task.cancel()
