"""Payloads of one outer part that its node sends to other sites itself, as the head orders: one life of the part."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any, Final

from dilocoxd.daemon.node.uplink import Uplink
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.local.uploads import (
    FAILED,
    NOT_HERE,
    AskUploadKey,
    PayloadSent,
    PayloadsMove,
    SendPayload,
    StopPayload,
    UploadKey,
    UploadPass,
    UploadPeer,
    UploadWay,
)
from dilocoxd.wire.messages import PEER_MESSAGES, SegmentHeader

LOOK_S: Final = 1.0
ALIVE_LOOKS: Final = 5
"""So many looks from one sign of life to the next."""
_Bytes = tuple[str, int, bytes]
"""Buffer, offset and sha256 of a payload."""


class PartUploads:
    """`run` beside the part; `take` what the head says."""

    def __init__(self, uplink: Uplink, buffers: Buffers, say: Callable[[Any], None]) -> None:
        """`say` is told what the head is to hear."""
        self._uplink = uplink
        self._buffers = buffers
        self._say = say
        self._is_wanted = False
        self._group: asyncio.TaskGroup | None = None
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._reading: dict[int, tuple[_Lent, _Bytes]] = {}
        """What each order under way reads."""
        self._proofs: dict[_Bytes, _Proof] = {}
        """Of all that is under way; good for whoever joins before the last one is through, and no longer."""
        self._told: dict[str, UploadWay] = {}

    def take(self, message: Any) -> bool:
        """Whether it was for us and not for the part. Raises WireError if it makes no sense."""
        match message:
            case AskUploadKey():
                self._is_wanted = True
                self._say(UploadKey(self._uplink.public_key))
            case UploadPass():
                self._uplink.take_pass(message)
            case UploadPeer():
                self._uplink.take_peer(message, self)
                self._told.pop(message.peer, None)  # whoever tells it anew has forgotten what we said
            case SendPayload():
                self._begin(message)
            case StopPayload(request):
                if request in self._under_way:
                    self._call_off(request)
            case _:
                return False
        return True

    async def run(self) -> None:
        """Until cancelled, and with it all that is under way."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._look()
        finally:
            self._uplink.leave(self)

    async def _look(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(LOOK_S)
            looks += 1
            self._tell_ways()
            if self._under_way and not looks % ALIVE_LOOKS:
                self._say(PayloadsMove())

    def _tell_ways(self) -> None:
        ways = {way.peer: way for way in self._uplink.ways()} if self._is_wanted else {}
        for peer, way in ways.items():
            if self._told.get(peer) != way:
                self._say(way)
        self._told = ways

    def _begin(self, order: SendPayload) -> None:
        header = PEER_MESSAGES.decode(order.header)
        if not isinstance(header, SegmentHeader) or self._group is None:
            raise WireError("unexpected_message", "no payload that could be sent")
        number = order.request
        task = self._group.create_task(self._send(order, header), name=f"payload {number} to {order.peer}")
        self._under_way[number] = task
        task.add_done_callback(lambda done: self._under_way.pop(number, None))

    def _call_off(self, request: int) -> None:
        """Its place may be written by the time our task hears of it, and more so the tasks below that."""
        self._under_way[request].cancel()
        if request in self._reading:
            self._reading[request][0].empty()
            self._let_go(request)
        self._say(PayloadSent(request, FAILED, detail="it was called off"))

    def _let_go(self, request: int) -> None:
        if request not in self._reading:
            return
        _, what = self._reading.pop(request)
        proof = self._proofs[what]
        proof.num_wanted -= 1
        if not proof.num_wanted:
            del self._proofs[what]
            proof.check.cancel()

    async def _send(self, order: SendPayload, header: SegmentHeader) -> None:
        try:
            answer = await self._sent(order, header)
        except (OSError, KeyError) as error:
            answer = PayloadSent(0, FAILED, detail=f"this node cannot read it: {error}"[:1000])
        self._say(dataclasses.replace(answer, request=order.request))

    async def _sent(self, order: SendPayload, header: SegmentHeader) -> PayloadSent:
        length = header.segment_bytes
        if order.offset + length > self._buffers.size(order.buffer):
            return PayloadSent(0, NOT_HERE, detail=f"{order.buffer} has no such place here")
        with contextlib.closing(_Lent(self._buffers.fd(order.buffer))) as lent:
            source = Region(lent.fd, order.offset, length)
            proof = self._proof((order.buffer, order.offset, header.segment_sha256), source)
            self._reading[order.request] = (lent, proof.what)
            try:
                # A head that started anew may have what it offers alone; wrong bytes would count against our site.
                if why_not := await asyncio.shield(proof.check):
                    return PayloadSent(0, NOT_HERE, detail=f"{order.buffer} here: {why_not}")
                return await self._uplink.send(PeerId(order.peer), header, source, is_new=order.is_new)
            finally:
                self._let_go(order.request)

    def _proof(self, what: _Bytes, source: Region) -> "_Proof":
        assert self._group is not None
        proof = self._proofs.get(what)
        if proof is None:
            lent = _Lent(source.fd)
            checking = _why_not(dataclasses.replace(source, fd=lent.fd), what[2])
            check = self._group.create_task(checking, name=f"hash of {what[0]}")
            check.add_done_callback(lambda done: lent.close())
            proof = self._proofs[what] = _Proof(what, check)
        proof.num_wanted += 1
        return proof


@dataclasses.dataclass(slots=True)
class _Proof:
    """Whether the bytes at a place are those that a header names: looked at once for all orders of them."""

    what: _Bytes
    check: asyncio.Task[str]
    """Why they are not; empty: they are."""
    num_wanted: int = 0


async def _why_not(source: Region, sha256: bytes) -> str:
    try:
        return "" if await source.sha256() == sha256 else "another payload lies there"
    except (OSError, StoreError) as error:
        return f"cannot be read: {error}"[:900]


class _Lent:
    """A descriptor of our own: the buffers may be given up while we read."""

    def __init__(self, fd: int) -> None:
        """Raises OSError: too many are open."""
        self.fd = os.dup(fd)

    def empty(self) -> None:
        """Whoever reads from it gets nothing from now on."""
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.dup2(nothing, self.fd, inheritable=False)
        finally:
            os.close(nothing)

    def close(self) -> None:
        """Once."""
        os.close(self.fd)
