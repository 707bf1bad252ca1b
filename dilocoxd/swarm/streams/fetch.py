"""Bulk pull: manifest, log entries and parts of snapshot files from one peer (many peers: download.py).

Opener: HELLO, FETCH -> responder: FOUND(total, offset, length, sha256 of the whole), PIECEs numbered from 0, FINISHED
-> opener: RECEIPT, closes. A range that stopped half-way goes on from its last piece, with the same or another peer.
"""

import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.bulk import RECEIPT_COMPLETE, Throttle
from dilocoxd.swarm.streams.pieces import PAYLOAD_BYTES_MAX, Region
from dilocoxd.swarm.streams.streams import PROTOCOL_FETCH, FrameStream, StreamGate
from dilocoxd.wire.frames import PIECE_BYTES, Frame, FrameKind, encode_piece_header, split_piece
from dilocoxd.wire.messages import PEER_MESSAGES, Fetch, FetchHeader, Hello

JOINER_RESOURCES: Final = frozenset({"manifest"})
"""What a peer gets that does not know the run yet."""


@dataclass(frozen=True, slots=True)
class Served:
    """An opened resource."""

    region: Region
    sha256: bytes
    """Of the whole resource."""
    close: Callable[[], None]


OnBytes = Callable[[int], None]
"""Told of each piece that was written, with its length."""


def _nobody(num_bytes: int) -> None:
    """Nobody wants to know."""


OpenResource = Callable[[PeerId, str], Awaitable[Served]]
"""The resource by name. Raises WireError(code, reason) to refuse it (`not_found`, `stale`, `busy`)."""


class FetchServer:
    """Responder of PROTOCOL_FETCH."""

    def __init__(self, open_resource: OpenResource, throttle: Throttle | None = None) -> None:
        self._open_resource = open_resource
        self._throttle = throttle
        self.counts: Counter[str] = Counter()
        """fetches_served, bytes_sent."""

    async def serve(self, stream: FrameStream, hello: Hello) -> None:
        """One incoming request."""
        frame = await stream.read(FrameKind.FETCH)
        request = PEER_MESSAGES.decode(frame.message)
        if not isinstance(request, Fetch):
            raise WireError("malformed", "FETCH frame without a Fetch message")
        if hello.run_id == "" and request.resource not in JOINER_RESOURCES:
            raise WireError("wrong_run", f"{request.resource} is only for peers of the run")
        try:
            served = await self._open_resource(stream.peer, request.resource)
        except WireError as error:
            await stream.refuse(error.code, error.detail)  # an answer, not bad input
            await stream.is_at_end()
            raise PeerError(f"{stream.peer} is refused {request.resource}") from error  # nothing follows it (S11.5)
        try:
            await self._send(stream, request, served)
        except StoreError as error:
            await stream.refuse("store", str(error))
        finally:
            served.close()

    async def _send(self, stream: FrameStream, request: Fetch, served: Served) -> None:
        total = served.region.length
        if request.offset > total:
            raise WireError("out_of_range", f"offset {request.offset} of {total}")
        length = total - request.offset
        if request.length_max:
            length = min(length, request.length_max)
        header = FetchHeader(total, request.offset, length, served.sha256)
        await stream.write(FrameKind.FOUND, PEER_MESSAGES.encode(header))
        source = served.region
        part = Region(source.fd, source.offset + request.offset, length, source.is_on_disk)
        for index in range(part.num_pieces):
            data = await part.read_piece(index)
            if self._throttle is not None:
                await self._throttle(stream.peer, len(data))
            await stream.write(FrameKind.PIECE, encode_piece_header(index), data)
            self.counts["bytes_sent"] += len(data)
        await stream.write(FrameKind.FINISHED)
        await stream.read(FrameKind.RECEIPT)
        self.counts["fetches_served"] += 1


class FetchClient:
    """Opener of PROTOCOL_FETCH."""

    def __init__(self, gate: StreamGate) -> None:
        self._gate = gate
        self.on_bad: Callable[[PeerId, WireError], None] = lambda peer, error: None
        """Told by whoever finds that bytes of a peer are not what they must be."""
        self.counts: Counter[str] = Counter()
        """bytes_received."""

    async def _request(
        self, peer: PeerId, resource: str, offset: int, length_max: int
    ) -> tuple[FrameStream, FetchHeader]:
        """The caller closes the stream."""

        async def request(stream: FrameStream) -> FetchHeader:
            await stream.write(FrameKind.FETCH, PEER_MESSAGES.encode(wanted))
            return self._header(await stream.read(FrameKind.FOUND), offset, length_max)

        wanted = Fetch(self._gate.run_id or "", resource, offset, length_max)
        return await self._gate.ask(peer, PROTOCOL_FETCH, request)

    @staticmethod
    def _header(frame: Frame, offset: int, length_max: int) -> FetchHeader:
        header = PEER_MESSAGES.decode(frame.message)
        if not isinstance(header, FetchHeader):
            raise WireError("malformed", "FOUND frame without a FetchHeader")
        is_sane = header.offset == offset and header.offset + header.length <= header.total_bytes <= PAYLOAD_BYTES_MAX
        if not is_sane or (length_max and header.length > length_max):
            raise WireError("out_of_range", f"asked for {length_max} bytes from {offset}, got {header}")
        return header

    async def _take_pieces(self, stream: FrameStream, target: Region) -> AsyncIterator[int]:
        """Write the pieces of an answer into `target`; yields the length of each when it is written."""
        for expected in range(target.num_pieces):
            num_bytes = await self._take_piece(stream, target, expected)
            self.counts["bytes_received"] += num_bytes
            yield num_bytes
        await stream.read(FrameKind.FINISHED)

    @staticmethod
    async def _take_piece(stream: FrameStream, target: Region, expected: int) -> int:
        """Its length. Nothing looks at the piece any more: its memory is for the one behind it."""
        index, data = split_piece((await stream.read(FrameKind.PIECE)).payload)
        if index != expected:
            raise WireError("out_of_range", f"piece {index} where {expected} was due")
        await target.write_piece(index, data)
        return len(data)

    async def fetch_range(
        self, peer: PeerId, resource: str, target: Region, *, offset: int, on_bytes: OnBytes = _nobody
    ) -> int:
        """Bytes written at the start of `target`, which is to hold the resource from `offset` on.

        Returns target.length, or less if the stream broke (go on from there). Raises PeerError if nothing came,
        WireError if the answer is wrong.
        """
        received = 0
        stream, header = await self._request(peer, resource, offset, target.length)
        try:
            if header.length != target.length:
                raise WireError("out_of_range", f"{resource} ends before byte {offset + target.length}")
            async for num_bytes in self._take_pieces(stream, target):
                received += num_bytes
                on_bytes(num_bytes)
            await stream.write(FrameKind.RECEIPT, RECEIPT_COMPLETE)
            stream.done()
        except PeerError:
            if not received:
                raise
        finally:
            stream.close()
        return received

    async def fetch_region(
        self, peer: PeerId, resource: str, target: Region, *, offset: int = 0, on_bytes: OnBytes = _nobody
    ) -> None:
        """Fill `target` from one peer, going on after breaks while there is progress. Raises PeerError, WireError."""
        done = 0
        while done < target.length:
            rest = Region(target.fd, target.offset + done, target.length - done, target.is_on_disk)
            received = await self.fetch_range(peer, resource, rest, offset=offset + done, on_bytes=on_bytes)
            done += received if received == rest.length else received - received % PIECE_BYTES

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int, on_bytes: OnBytes = _nobody) -> bytes:
        """A small resource; its hash is checked only against what this peer said. Raises PeerError, WireError."""
        fd = os.memfd_create("fetch", os.MFD_CLOEXEC)
        try:
            stream, header = await self._request(peer, resource, 0, bytes_max)
            try:
                if header.total_bytes > bytes_max:
                    raise WireError("too_large", f"{resource} has {header.total_bytes} bytes, at most {bytes_max}")
                async for num_bytes in self._take_pieces(stream, Region(fd, 0, header.length)):
                    on_bytes(num_bytes)
                await stream.write(FrameKind.RECEIPT, RECEIPT_COMPLETE)
                stream.done()
            finally:
                stream.close()
            data = os.pread(fd, header.length, 0)
        finally:
            os.close(fd)
        if hashlib.sha256(data).digest() != header.sha256:
            raise WireError("bad_hash", f"{resource} is not what {peer} announced")
        return data
