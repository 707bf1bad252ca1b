"""The swarm as the rest of the daemon sees it: one object that owns p2pd, the streams and the membership gossip.

Moves messages, payloads and records; reports them to a `Listener`, and decides nothing about rounds. The parts it puts
together: kademlia.Node (p2pd), StreamGate (who may talk), MessageChannel, BulkSender/Receiver, Fetch, Gossip, Contacts.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from dilocoxd.errors import PeerError, StoreError, WireError, WorkerError
from dilocoxd.ids import Digest, PeerId, RunId
from dilocoxd.ipc.fault import hold
from dilocoxd.swarm.addresses import can_reach_others, parse_address
from dilocoxd.swarm.bulk import BulkReceiver, BulkSender
from dilocoxd.swarm.channel import MessageChannel
from dilocoxd.swarm.contacts import Contacts, Whereabouts
from dilocoxd.swarm.ending import end_all
from dilocoxd.swarm.fetch import FetchClient, FetchServer, Served
from dilocoxd.swarm.gossip import RECORD_TTL_MS, Gossip
from dilocoxd.swarm.guard import Guard
from dilocoxd.swarm.hello import Introduction, introduce
from dilocoxd.swarm.identity import Identity
from dilocoxd.swarm.kademlia import Node
from dilocoxd.swarm.node_settings import NodeSettings
from dilocoxd.swarm.p2pd_supervisor import keep_p2pd
from dilocoxd.swarm.peers_file import PeersFile
from dilocoxd.swarm.pieces import Region
from dilocoxd.swarm.records import RecordBook, sign_record
from dilocoxd.swarm.relays import keep_places
from dilocoxd.swarm.streams import (
    PROTOCOL_BULK,
    PROTOCOL_CALL,
    PROTOCOL_FETCH,
    PROTOCOL_HELLO,
    PROTOCOL_MESSAGE,
    FrameStream,
    ServeStream,
    StreamGate,
    unix_ms,
)
from dilocoxd.swarm.throttle import ServingLimit, TokenBucket
from dilocoxd.telemetry.catalogue import AlertRaised, Event, FaultHeld, InputRejected, WorkerStarted
from dilocoxd.wire.entry import SignedVote
from dilocoxd.wire.frames import FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, PROTOCOL_MAJOR, PROTOCOL_MINOR, Hello, Records, SegmentHeader
from dilocoxd.wire.records import PeerRecord

SAVE_EVERY_S: Final = 5.0
OWN_RECORD_CLASHES_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class SwarmSettings:
    """What run.toml and site.toml say about the network."""

    run_id: RunId
    identity: Identity
    peers_json: Path
    socket_dir: Path
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/31337",)
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    map_port: bool = False
    upload_bytes_per_s_max: int = 0
    serve_bytes_per_s_max: int = 0
    streams_per_peer: int = 4
    """For one large payload."""
    allowed_peers: frozenset[PeerId] | None = None
    """None: every peer of the run is welcome."""
    startup_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SelfDescription:
    """What our next record shall say about us."""

    state: str
    chain_head: Digest
    chain_height: int
    chain_weight: int
    state_digest: Digest
    contributed_round: int = -1
    steps_per_s: float = 0.0
    tokens_per_s: float = 0.0


class Listener(Protocol):
    """What the daemon does with what arrives."""

    def describe(self) -> SelfDescription:
        """Our state, for the next heartbeat."""
        ...

    def on_record(self, record: PeerRecord, is_fresh: bool) -> None:
        """Newer record of a peer, verified; `is_fresh`: from that peer itself, or signed less than its ttl ago."""
        ...

    def on_contact(self, peer: PeerId) -> None:
        """This peer has just exchanged hellos with us: it is alive."""
        ...

    async def on_message(self, peer: PeerId, message: Any) -> None:
        """Any message of PEER_MESSAGES except Records and Hello; while this waits, that peer's stream waits."""
        ...

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        """Where an offered payload goes (see bulk.Accept)."""
        ...

    async def on_segment(self, peer: PeerId, header: SegmentHeader) -> None:
        """This payload is there, complete and verified."""
        ...

    async def open_resource(self, peer: PeerId, name: str) -> Served:
        """Bytes that a peer asks for (see fetch.OpenResource)."""
        ...


class Swarm:
    """Start with `start`, then keep `run` running; everything else may be called in between."""

    def __init__(self, settings: SwarmSettings, listener: Listener, emit: Callable[[Event], None]) -> None:
        self._settings = settings
        self._listener = listener
        self._emit = emit
        self.guard = Guard(asyncio.get_running_loop().time, allowed=settings.allowed_peers)
        self.peer_id = settings.identity.peer_id
        self.book = RecordBook(self.peer_id, settings.run_id)
        self.node = Node(self._node_settings(), self._check_hint, lambda code: self.guard.count("dht", code))
        self.gate = StreamGate(self.node, settings.run_id, self.guard)
        self.gate.on_rejected = self._on_rejected
        self.channel = MessageChannel(self.gate, self._on_message, self._on_call)
        throttle = TokenBucket(settings.upload_bytes_per_s_max).take if settings.upload_bytes_per_s_max else None
        self.bulk_in = BulkReceiver(listener.accept, listener.on_segment)
        self.bulk_out = BulkSender(self.gate, throttle, lanes_max=settings.streams_per_peer)
        serving = ServingLimit(settings.serve_bytes_per_s_max, self.bulk_out.sending_speed)
        serving.upload = throttle
        self.fetch_server = FetchServer(listener.open_resource, serving.take)
        self.fetch_client = FetchClient(self.gate)
        self.fetch_client.on_bad = self._on_bad_bytes
        self._file = PeersFile(settings.peers_json)
        places = Whereabouts(tuple(parse_address(text) for text in settings.bootstrap), self.book, self._file)
        self.contacts = Contacts(self.node, self.gate, places, self._on_contact, emit)
        self.gossip = Gossip(self.node, self.channel, self.contacts, places, self.guard)
        self.gossip.make_record = self._make_record
        self.gossip.on_record = self._on_record
        self._sequence = 0
        self._clashes = 0
        self._addresses: tuple[str, ...] = ()

    def _node_settings(self) -> NodeSettings:
        s = self._settings
        announce = tuple(address.removesuffix(f"/p2p/{self.peer_id}") for address in s.announce)
        return NodeSettings(
            s.identity.path,
            s.socket_dir,
            s.listen,
            announce,
            str(s.run_id),
            s.relays,
            s.map_port,
            # Who names relays cannot be reached otherwise; who announces an address can.
            "private" if s.relays else "public" if s.announce else None,
            s.startup_timeout_s,
        )

    # ---- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load peers.json, start p2pd and serve. Raises ConfigError (port), WorkerError (p2pd), StoreError (disk)."""
        problem = self._file.load()
        if problem:
            self._emit(InputRejected(peer="peers.json", code="malformed", detail=problem))
        self._file.incarnation += 1
        await asyncio.to_thread(self._file.save)
        handlers: dict[str, tuple[ServeStream, bool]] = {
            PROTOCOL_HELLO: (self._serve_hello, True),
            PROTOCOL_MESSAGE: (self.channel.serve_messages, False),
            PROTOCOL_CALL: (self.channel.serve_call, False),
            PROTOCOL_BULK: (self.bulk_in.serve, False),
            PROTOCOL_FETCH: (self.fetch_server.serve, True),
        }
        for protocol, (handler, admits_joiners) in handlers.items():
            await self.node.set_handler(protocol, self._entrance(handler, admits_joiners))
        await self.node.start()
        await self._look_up_addresses()
        self._emit(WorkerStarted(worker="p2pd", pid=self.node.p2pd_pid, generation=self.node.num_starts))
        self.gossip.take(tuple(item.record for item in self._file.peers.values() if item.record), "peers.json")
        self.gossip.publish()

    def _entrance(self, handler: ServeStream, admits_joiners: bool) -> Any:
        async def enter(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.gate.serve(handler, peer, reader, writer, admits_joiners=admits_joiners)

        return enter

    async def run(self, is_stopped: asyncio.Event) -> None:
        """Keep everything going until `is_stopped`, then say goodbye and end p2pd.

        Raises WorkerError when p2pd dies too often (p2pd_supervisor).
        """
        rng = random.Random(self.peer_id)  # only spreads the partners; no secret
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                loops = [
                    group.create_task(
                        keep_p2pd(self.node, is_stopped, self.contacts.try_all_now, self._emit), name="p2pd supervisor"
                    ),
                    group.create_task(self.contacts.run(), name="contacts"),
                    group.create_task(self.gossip.run_heartbeat(), name="heartbeat"),
                    group.create_task(self.gossip.run_exchange(rng), name="record exchange"),
                    group.create_task(self.gossip.run_hints(), name="dht hints"),
                    group.create_task(self._keep_file(), name="peers.json"),
                    group.create_task(keep_places(self.node, self._settings.relays, self._emit), name="relays"),
                ]
                is_channel_stopped = asyncio.Event()
                group.create_task(self.channel.run(is_channel_stopped), name="messages")
                await is_stopped.wait()
                await hold("goodbye", lambda point: self._emit(FaultHeld(point=point)))
                await self._say_goodbye()
                is_channel_stopped.set()
                await end_all(loops)
        except* WorkerError as failed:
            failure = failed.exceptions[0]
        finally:
            await self.node.shutdown()
            await asyncio.to_thread(self._file.save)
        if failure is not None:
            raise failure

    async def _say_goodbye(self) -> None:
        """Our last record, by call, so that it is known to have arrived (2 s at most)."""
        data = self._make_record()
        self.book.add(data, unix_ms())

        async def tell(peer: PeerId) -> None:
            try:
                await self.channel.call(peer, Records((data,), False), timeout_s=2.0)
            except (PeerError, WireError):
                return  # it will see us silent

        async with asyncio.TaskGroup() as group:
            for peer in self.contacts.in_touch:
                group.create_task(tell(peer), name=f"goodbye to {peer}")

    async def _keep_file(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self._look_up_addresses()
            try:
                await asyncio.to_thread(self._file.save)
            except StoreError as error:
                self._emit(AlertRaised(code="peers_json", text=str(error), remedy="free some disk space"))

    # ---- records ----------------------------------------------------------------------------------------------

    async def _look_up_addresses(self) -> None:
        try:
            self._addresses = tuple(await self.node.addresses())
        except PeerError:
            return  # p2pd is being started again; its addresses stay the same

    def _make_record(self) -> bytes:
        me = self._listener.describe()
        self._sequence += 1
        record = PeerRecord(
            peer=self.peer_id,
            run_id=self._settings.run_id,
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            incarnation=self._file.incarnation,
            sequence=self._sequence,
            unix_ms=unix_ms(),
            ttl_ms=RECORD_TTL_MS,
            state=me.state,
            addresses=tuple(address.removesuffix(f"/p2p/{self.peer_id}") for address in self._addresses)[:16],
            chain_head=me.chain_head,
            chain_height=me.chain_height,
            chain_weight=me.chain_weight,
            state_digest=me.state_digest,
            contributed_round=me.contributed_round,
            milli_steps_per_s=round(max(0.0, me.steps_per_s) * 1000),
            tokens_per_s=round(max(0.0, me.tokens_per_s)),
            upload_bytes_per_s=round(max(self.bulk_out.bytes_per_s.values(), default=0.0)),
        )
        return sign_record(self._settings.identity, record)

    def _on_record(self, record: PeerRecord, is_fresh: bool) -> None:
        if record.peer != self.peer_id:
            self._listener.on_record(record, is_fresh)
            return
        # Somebody shows us a newer record of ourselves: peers.json was lost, or a copy of our key runs elsewhere.
        if record.incarnation >= self._file.incarnation:
            self._file.incarnation = record.incarnation + 1
            self._clashes += 1
            self.gossip.is_news.set()
        if self._clashes > OWN_RECORD_CLASHES_MAX:
            self._clashes = 0
            text = f"another daemon uses the identity {self.peer_id}, at {', '.join(record.addresses)}"
            remedy = "give each site an identity key of its own"
            self._emit(AlertRaised(code="identity_twice", text=text, remedy=remedy))

    def _check_hint(self, data: bytes, expiration_s: float) -> PeerId:
        return self.book.check_hint(data, expiration_s, unix_ms())

    def announce(self) -> None:
        """Send our record now: state or chain head has changed."""
        self.gossip.is_news.set()

    # ---- incoming ---------------------------------------------------------------------------------------------

    def _on_rejected(self, peer: PeerId, error: WireError) -> None:
        self._emit(InputRejected(peer=peer, code=error.code, detail=error.detail))

    def _on_bad_bytes(self, peer: PeerId, error: WireError) -> None:
        self.guard.count(peer, error.code)
        self._on_rejected(peer, error)

    async def _serve_hello(self, stream: FrameStream, hello: Hello) -> None:
        answer = self.gate.hello(self.book.data(self.peer_id))
        await stream.write(FrameKind.HELLO, PEER_MESSAGES.encode(answer))
        if hello.run_id:
            self.contacts.note_met(stream.peer)
            self._greet(stream.peer, hello.record)

    async def _on_contact(self, peer: PeerId, introduction: Introduction) -> None:
        self._greet(peer, introduction.record)
        await self.gossip.exchange_with(peer)

    def _greet(self, peer: PeerId, record: bytes) -> None:
        self.gossip.take((record,) if record else (), peer)
        self._listener.on_contact(peer)

    async def _on_message(self, peer: PeerId, message: Any) -> None:
        if isinstance(message, Records):
            self.gossip.take(message.records, peer)
        elif isinstance(message, Hello):
            raise WireError("unexpected_frame", "Hello inside a stream")
        else:
            await self._listener.on_message(peer, message)

    async def _on_call(self, peer: PeerId, message: Any) -> Any:
        if not isinstance(message, Records):
            raise WireError("unknown_message", f"{type(message).__name__} has no answer")
        return self.gossip.answer(peer, message)

    # ---- for the daemon ---------------------------------------------------------------------------------------

    def addresses(self) -> tuple[str, ...]:
        """Our multiaddrs with /p2p/, those that other machines can use first."""
        return tuple(sorted(self._addresses, key=lambda address: not can_reach_others(address)))

    def join_address(self) -> str:
        """The one to paste behind `dilocoxd join`."""
        if self._settings.relays:
            return self._settings.relays[0]  # any peer of the run will do, and ours is not reached from outside
        return self.addresses()[0] if self._addresses else ""

    def send(self, peer: PeerId, message: Any) -> None:
        """Queue a message; best effort, in order."""
        self.channel.send(peer, message)

    async def probe(self, peer: PeerId, *, timeout_s: float = 5.0) -> bool:
        """Whether `peer` answers a hello now."""
        try:
            introduction = await introduce(self.gate, peer, record=self.book.data(self.peer_id), timeout_s=timeout_s)
        except (PeerError, WireError):
            return False
        self._greet(peer, introduction.record)
        return True

    async def send_segment(self, peer: PeerId, header: SegmentHeader, source: Region) -> None:
        """Return when `peer` has confirmed the payload. Raises PeerError (Refused), StoreError."""
        await self.bulk_out.send_segment(peer, header, source)

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int) -> bytes:
        """A small resource of a peer. Raises PeerError (Refused), WireError."""
        return await self.fetch_client.fetch_bytes(peer, resource, bytes_max=bytes_max)

    async def fetch_region(self, peer: PeerId, resource: str, target: Region, *, offset: int = 0) -> None:
        """Part of a resource of one peer into a file. Raises PeerError (Refused), WireError, StoreError."""
        await self.fetch_client.fetch_region(peer, resource, target, offset=offset)

    def sign(self, text: bytes) -> SignedVote:
        """Our signature over a text that starts with its domain."""
        identity = self._settings.identity
        return SignedVote(self.peer_id, identity.public_key_der, identity.sign(text))
