"""The port of a node, at which other sites bring contributions to the segments of outer parts that run here.

One for all parts. Who may come and where each payload goes is the head's word (part_receipts.py); bounds, bitmaps and
hashes are those of a daemon's data port. Source: docs/adr/0046-nodes-receive-contributions.md, protocol S12.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from dilocoxd.config.addresses import ip_version, read_address, socket_family
from dilocoxd.daemon.node.no_streams import NoStreams
from dilocoxd.errors import ConfigError, WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION
from dilocoxd.swarm.direct.certificates import Credentials
from dilocoxd.swarm.direct.links import DataLink
from dilocoxd.swarm.direct.listener import DataListener
from dilocoxd.swarm.direct.sockets import listen_on
from dilocoxd.swarm.streams.assemblies import Assembly
from dilocoxd.swarm.streams.bulk import BulkReceiver
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.rejections import empty_exchanges
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, StreamGate
from dilocoxd.wire.local.inlets import CallerRejected, InletState
from dilocoxd.wire.messages import HOSTS_MAX, SegmentHeader

CALLERS_MAX: Final = 1024
REJECTED_MAX: Final = 256
"""Sites and codes of which the head hears at the next look."""
HANDSHAKES: Final = PeerId("data")
"""In place of a site: who was refused before it had proved whose it is."""
LOOK_MAX: Final = 8
"""Sites towards which the own address is looked up."""
NOBODY: Final = "no outer part here has this segment now"


class Receiver(Protocol):
    """One life of a part (part_receipts.py)."""

    segments: range

    async def decide(self, peer: PeerId, header: SegmentHeader) -> None:
        """Return when the head has given it a place. Raises AlreadyHeld, or WireError to refuse it."""
        ...

    def place(self, peer: PeerId, header: SegmentHeader) -> Region:
        """That place. Raises WireError when it was called off meanwhile."""
        ...

    async def arrived(self, peer: PeerId, header: SegmentHeader) -> None:
        """Return when the head has heard that it is whole. Raises PeerError when it has not."""
        ...


class AskingReceiver(BulkReceiver):
    """Does not know by itself where a payload goes: that of its segment does, and has to ask."""

    def __init__(self, part_of: Callable[[SegmentHeader], Receiver]) -> None:
        super().__init__(
            lambda peer, header: part_of(header).place(peer, header),
            lambda peer, header: part_of(header).arrived(peer, header),
        )
        self._part_of = part_of

    async def _assembly_soon(self, peer: PeerId, header: SegmentHeader) -> Assembly:
        await self._part_of(header).decide(peer, header)
        return self._assembly(peer, header)


class _Door:
    """All that begins with a certificate of a head, and ends with the last of them."""

    def __init__(self, credentials: Credentials, made_for: tuple[str, int], ips: list[str], inlet: "Inlet") -> None:
        """Raises ConfigError: the port is taken."""
        run_id, port = made_for
        self.made_for = made_for
        self._reject = inlet.reject
        self.listener = DataListener(listen_on(ips, port), credentials, self._serve)
        self.listener.on_refused = lambda error: inlet.reject(HANDSHAKES, error)
        self.gate = StreamGate(
            NoStreams(), RunId(run_id), PeerGuard(asyncio.get_running_loop().time), Doorkeeper()
        )  # fmt: skip
        self.gate.on_rejected = inlet.reject
        self.receiver = AskingReceiver(inlet.part_of)
        self.receiver.on_delayed = lambda peer: inlet.reject(peer, empty_exchanges())

    async def _serve(self, peer: PeerId, protocol: str, link: DataLink, network: str) -> None:
        if protocol != PROTOCOL_BULK:
            self._reject(peer, WireError("bad_handshake", "a node serves nothing to be fetched"))
            return
        await self.gate.serve(self.receiver.serve, peer, link.channel, link.channel, data_from=network)


class Inlet:
    """`run` until cancelled; everything else may be called in between."""

    def __init__(self, announce: str = "", head: str = "", others: Callable[[], Iterable[str]] = tuple) -> None:
        """`announce`: ADDRESS[:PORT] of this machine as others see it, empty: its own towards `others`, the hosts of
        sites that it knows, or towards its head."""
        self._announced = read_address(announce) if announce else None
        self._head, self._others = head, others
        self._credentials: Credentials | None = None
        self._run_id = ""
        self._port: int | None = None
        self._parts: list[Receiver] = []
        self._callers: dict[PeerId, bytes] = {}
        self._told_by: dict[PeerId, set[object]] = {}
        """Lives of parts whose head knows each of them."""
        self._rejected: Counter[tuple[PeerId, str]] = Counter()
        self._door: _Door | None = None
        self._reason = "it has not been opened yet"
        self._changed = asyncio.Event()

    # ---- what the head says -----------------------------------------------------------------------------------

    def certify(self, credentials: Credentials, run_id: str) -> None:
        """Show this from now on."""
        self._credentials, self._run_id = credentials, run_id
        if self._door is not None:
            self._door.listener.renew(credentials)
        self._changed.set()

    def end(self) -> None:
        """Nobody certifies us any more."""
        self._credentials = None
        self._callers.clear()
        self._told_by.clear()
        self._changed.set()

    def receive(self, part: Receiver, port: int) -> None:
        """Contributions to its segments come to `part`."""
        if part not in self._parts:
            self._parts.append(part)
        self._port = port
        self._changed.set()

    def let_in(self, peer: PeerId, public_key_der: bytes, teller: object) -> None:
        """This site may come. `teller`: see `leave`."""
        if peer not in self._callers and len(self._callers) >= CALLERS_MAX:
            return
        self._callers[peer] = public_key_der
        self._told_by.setdefault(peer, set()).add(teller)
        if self._door is not None:
            self._door.listener.believe(peer, public_key_der)

    def keep_out(self, peer: PeerId) -> None:
        """It may come no more, and what it has open ends."""
        self._callers.pop(peer, None)
        self._told_by.pop(peer, None)
        if self._door is not None:
            self._door.listener.drop(peer)

    def forget(self, is_over: Callable[[SegmentHeader], bool]) -> None:
        """Nothing of these is written from now on."""
        if self._door is not None:
            self._door.receiver.forget(is_over)

    def call_off(self, peer: PeerId, header: SegmentHeader) -> None:
        """Nothing of this payload of this site is written from now on."""
        if self._door is not None:
            self._door.receiver.drop(peer, header)

    def leave(self, part: Receiver) -> None:
        """Its life is over: nothing is written for it any more, and nobody tells us through it who is evicted."""
        if part in self._parts:
            self._parts.remove(part)
        self.forget(lambda header: header.segment in part.segments)
        for peer, tellers in list(self._told_by.items()):
            tellers.discard(part)
            if not tellers:
                self.keep_out(peer)

    # ---- what it asks -----------------------------------------------------------------------------------------

    def part_of(self, header: SegmentHeader) -> Receiver:
        """Whose segment it is. Raises WireError."""
        if header.kind != KIND_CONTRIBUTION:
            raise WireError("not_wanted", "nodes take contributions alone")
        for part in self._parts:
            if header.segment in part.segments:
                return part
        raise WireError("busy", NOBODY)

    def reject(self, peer: PeerId, error: WireError) -> None:
        """Remember for the head what was refused as bad input."""
        key = (peer, error.code)
        if key in self._rejected or len(self._rejected) < REJECTED_MAX:
            self._rejected[key] += 1

    def take_rejected(self) -> list[CallerRejected]:
        """What was refused since this was asked last."""
        found = [CallerRejected(peer, code, count) for (peer, code), count in self._rejected.items()]
        self._rejected.clear()
        return found

    def state(self) -> InletState:
        """Where others reach it."""
        if self._door is None:
            return InletState(0, (), self._reason[:1000])
        if self._announced is not None:
            return InletState(self._announced.port or self._door.listener.port, (self._announced.host,))
        return InletState(self._door.listener.port, self._hosts())

    def _hosts(self) -> tuple[str, ...]:
        towards = [host for _, host in zip(range(LOOK_MAX), self._others(), strict=False)]
        found = [address_towards(host) for host in towards] or [address_towards(self._head)]
        return tuple(dict.fromkeys(filter(None, found)))[:HOSTS_MAX]

    # ---- life -------------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> tuple[str, int] | None:
        is_asked_for = self._credentials is not None and self._port is not None
        return (self._run_id, self._port or 0) if is_asked_for else None

    async def run(self) -> None:
        """Listen whenever a head asks for it and certifies us."""
        while True:
            self._changed.clear()
            wanted = self._wanted
            if wanted is None:
                await self._changed.wait()
            else:
                await self._listen(wanted)

    async def _listen(self, wanted: tuple[str, int]) -> None:
        assert self._credentials is not None
        host = self._announced.host if self._announced is not None else next(iter(self._hosts()), "0.0.0.0")
        try:
            door = _Door(self._credentials, wanted, ["::" if ":" in host else "0.0.0.0"], self)
        except ConfigError as error:
            self._reason = str(error)
            await self._changed.wait()  # the next certificate, if nothing else
            return
        for peer, public_key_der in self._callers.items():
            door.listener.believe(peer, public_key_der)
        self._door = door
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(door.listener.run(), name="data port of a node")
                while self._wanted == wanted:
                    self._changed.clear()
                    await self._changed.wait()
                listening.cancel()
        finally:
            self._door = None


def address_towards(host: str) -> str:
    """Our address from which packets to this IP address leave; empty: there is no way to it. Sends nothing."""
    if ip_version(host) is None:
        return ""
    try:
        with socket.socket(socket_family(host), socket.SOCK_DGRAM) as sock:
            sock.connect((host, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return ""
