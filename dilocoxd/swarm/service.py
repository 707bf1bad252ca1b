"""The swarm as the rest of the daemon sees it: one object that owns p2pd, the streams and the membership gossip.

Moves messages, payloads and records; reports them to a `Listener`, and decides nothing about rounds. The parts it puts
together: kademlia.Node (p2pd), StreamGate (who may talk), MessageChannel, BulkSender/Receiver, Fetch, Gossip, Contacts.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from dilocoxd.errors import PeerError, StoreError, WireError, WorkerError
from dilocoxd.ids import PeerId
from dilocoxd.ipc.fault import hold
from dilocoxd.swarm.cancelling import end_all
from dilocoxd.swarm.direct.hosts import DataHosts
from dilocoxd.swarm.direct.links import DataLink
from dilocoxd.swarm.direct.opening import open_data_plane
from dilocoxd.swarm.direct.plane import DataPlane
from dilocoxd.swarm.direct.routes import RouteView
from dilocoxd.swarm.discovery.admissions import make_admissions
from dilocoxd.swarm.discovery.contacts import Contacts, Whereabouts
from dilocoxd.swarm.discovery.decisions import Decisions
from dilocoxd.swarm.discovery.gossip import OWN_FILE, RECORD_TTL_MS, Gossip
from dilocoxd.swarm.discovery.hello import Introduction, introduce
from dilocoxd.swarm.discovery.peers_file import PeersFile
from dilocoxd.swarm.discovery.records import RecordBook, sign_record
from dilocoxd.swarm.interface import Listener, SwarmSettings
from dilocoxd.swarm.p2pd.addresses import by_reach, parse_address
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.swarm.p2pd.relays import keep_places
from dilocoxd.swarm.p2pd.supervisor import keep_p2pd
from dilocoxd.swarm.streams.bulk import BulkReceiver, BulkSender
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.swarm.streams.fetch import FetchClient, FetchServer
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.messages import MessageChannel
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.rejections import Rejections
from dilocoxd.swarm.streams.streams import (
    PROTOCOL_BULK,
    PROTOCOL_CALL,
    PROTOCOL_FETCH,
    PROTOCOL_HELLO,
    PROTOCOL_MESSAGE,
    Admits,
    FrameStream,
    ServeStream,
    StreamGate,
    unix_ms,
)
from dilocoxd.swarm.streams.throttle import ServingLimit, TokenBucket
from dilocoxd.telemetry.alerts import raised
from dilocoxd.telemetry.catalogue import Event, FaultHeld, InputRejected, PeerReinstated, WorkerStarted
from dilocoxd.wire.authorities import PACKED_BYTES_MAX
from dilocoxd.wire.frames import FrameKind
from dilocoxd.wire.messages import (
    PEER_MESSAGES,
    PROTOCOL_MAJOR,
    PROTOCOL_MINOR,
    AuthorityChanges,
    Hello,
    Records,
    Revocations,
    SegmentHeader,
)
from dilocoxd.wire.records import PeerRecord

SAVE_EVERY_S: Final = 5.0
OWN_RECORD_CLASHES_MAX: Final = 3


class Swarm:
    """Start with `start`, then keep `run` running; everything else may be called in between."""

    def __init__(self, settings: SwarmSettings, listener: Listener, emit: Callable[[Event], None]) -> None:
        self._settings = settings
        self._listener = listener
        self._emit = emit
        self.guard = PeerGuard(asyncio.get_running_loop().time, allowed=settings.allowed_peers)
        self.peer_id = settings.identity.peer_id
        self.book = RecordBook(self.peer_id, settings.run_id)
        self.admissions = make_admissions(settings.authorities, settings.members_json)
        self.doors = Doorkeeper(self.admissions.book if self.admissions else None, settings.membership)
        for_p2pd = settings.for_p2pd(self.doors.is_member, self.doors.is_evicted)
        self.node = Node(for_p2pd, self._check_hint, lambda code: self.guard.count("dht", code))
        self.gate = StreamGate(self.node, settings.run_id, self.guard, self.doors)
        if self.admissions is not None:
            self.doors.on_change = self.admissions.note_change
            self.admissions.on_evicted = self._on_evicted
            self.admissions.on_reinstated = lambda peer: emit(PeerReinstated(peer=peer))
        self.decisions = Decisions(self.admissions, self._tell_all, emit)
        self.doors.on_unknown = self.decisions.note_unknown
        self.rejections = Rejections(self.guard, asyncio.get_running_loop().time, emit)
        self.gate.on_rejected = self.rejections.tell
        self.gate.network = self.node.network
        self.gate.room.worth = lambda peer: int(peer in self.contacts.in_touch)
        self.channel = MessageChannel(self.gate, self._on_message, self._on_call)
        self.decisions.send, self.channel.on_lost = self.channel.send, self.decisions.told.lose
        self.decisions.told.incarnation_of = self.book.incarnation_of
        limit = TokenBucket(settings.upload_bytes_per_s_max)
        self.bulk_in = BulkReceiver(listener.accept, listener.on_segment)
        self.bulk_in.on_delayed = self.rejections.note_empty
        self.bulk_out = BulkSender(self.gate, limit.take, lanes_max=settings.streams_per_peer)
        self.bulk_out.give_back = limit.give_back
        serving = ServingLimit(settings.serve_bytes_per_s_max, self.bulk_out.sending_speed, limit)
        self.fetch_server = FetchServer(listener.open_resource, serving.take)
        self.fetch_client = FetchClient(self.gate)
        self.fetch_client.on_bad = self.rejections.count
        self._file = PeersFile(settings.peers_json)
        places = Whereabouts(tuple(parse_address(text) for text in settings.bootstrap), self.book, self._file)
        self.contacts = Contacts(self.node, self.gate, places, self._on_contact, emit)
        self.gate.on_turned_away = self._on_turned_away
        self.gossip = Gossip(self.node, self.channel, self.contacts, places, self.guard)
        self.gossip.make_record = self._make_record
        self.gossip.on_record = self._on_record
        self.data: DataPlane | None = None
        """From `start` on, if data connections are turned on."""
        self._data_hosts = DataHosts(self.node, places)
        self._handlers: dict[str, tuple[ServeStream, Admits]] = {
            PROTOCOL_MESSAGE: (self.channel.serve_messages, "members"),
            PROTOCOL_CALL: (self.channel.serve_call, "members"),
            PROTOCOL_BULK: (self.bulk_in.serve, "members"),
            PROTOCOL_FETCH: (self.fetch_server.serve, "visitors"),
            PROTOCOL_HELLO: (self._serve_hello, "everybody"),  # last: who is greeted as p2pd starts asks the others
        }
        self._sequence = 0
        self._clashes = 0
        self._addresses: tuple[str, ...] = ()
        self.public: tuple[str, ...] = ()
        """Addresses of ours that others found out; told after those that p2pd knows."""

    # ---- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load peers.json, start p2pd and serve. Raises ConfigError (port), WorkerError (p2pd), StoreError (disk)."""
        if problem := self._file.load():
            self._emit(InputRejected(peer="peers.json", code="malformed", detail=problem))
        problem = self.admissions.load() if self.admissions is not None else ""
        if problem:
            self._emit(InputRejected(peer="members.json", code="malformed", detail=problem))
        self._file.incarnation += 1
        await asyncio.to_thread(self._file.save)
        self._open_data_port()
        for protocol, (handler, admits) in self._handlers.items():
            await self.node.set_handler(protocol, self._entrance(handler, admits))
        try:
            await self.node.start()
        finally:
            if self.data is not None and not self.node.is_running:
                self.data.listener.close()
        await self._look_up_addresses()
        self._emit(WorkerStarted(worker="p2pd", pid=self.node.p2pd_pid, generation=self.node.num_starts))
        self.gossip.take(tuple(item.record for item in self._file.peers.values() if item.record), OWN_FILE)
        self.gossip.publish()

    def _open_data_port(self) -> None:
        hosts, keys = self._data_hosts.find, self.book.key_of
        self.data = self.gate.data = open_data_plane(self._settings, hosts, keys, self._serve_data)
        if self.data is not None:
            port = self.data.port
            self.gate.data_port = lambda: port
            self.data.tell(self._data_hosts.is_connected, self._listener, self.bulk_out.speeds.to)
            self.data.listener.on_refused = lambda error: self.guard.count("data", error.code)

    async def _serve_data(self, peer: PeerId, protocol: str, link: DataLink, network: str) -> None:
        handler, admits = self._handlers[protocol]
        await self.gate.serve(handler, peer, link.channel, link.channel, admits=admits, data_from=network)

    def _entrance(self, handler: ServeStream, admits: Admits) -> Any:
        async def enter(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.gate.serve(handler, peer, reader, writer, admits=admits)

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
                    group.create_task(
                        self.decisions.run(self._authorities_of, self.rejections.count), name="authorities"
                    ),
                    group.create_task(keep_places(self.node, self._settings.relays, self._emit), name="relays"),
                ]
                if self.data is not None:
                    ways = self.data.run(lambda: self.contacts.in_touch)
                    loops.append(group.create_task(ways, name="data connections"))
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
            await asyncio.to_thread(self._save_files)
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
                await asyncio.to_thread(self._save_files)
            except StoreError as error:
                self._emit(raised("peers_json", str(error)))

    def _save_files(self) -> None:
        self._file.save()
        if self.admissions is not None:
            self.admissions.save()

    # ---- records ----------------------------------------------------------------------------------------------

    async def _look_up_addresses(self) -> None:
        try:
            self._addresses = tuple(dict.fromkeys((*await self.node.addresses(), *self.public)))
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
            name=self._settings.name,
        )
        return sign_record(self._settings.identity, record)

    def _on_record(self, record: PeerRecord, is_own_word: bool) -> None:
        if record.peer != self.peer_id:
            # What is said of somebody who never showed us a membership only tells where to ask for it.
            if self.doors.is_member(record.peer):
                self._listener.on_record(record, is_own_word)
            return
        # Somebody shows us a newer record of ourselves: peers.json was lost, or a copy of our key runs elsewhere.
        if record.incarnation >= self._file.incarnation:
            self._file.incarnation = record.incarnation + 1
            self._clashes += 1
            self.gossip.is_news.set()
        if self._clashes > OWN_RECORD_CLASHES_MAX:
            self._clashes = 0
            text = f"another daemon uses the identity {self.peer_id}, at {', '.join(record.addresses)}"
            self._emit(raised("identity_twice", text))

    def _check_hint(self, data: bytes, expiration_s: float) -> PeerId:
        return self.book.check_hint(data, expiration_s, unix_ms())

    def announce(self) -> None:
        """Send our record now: state or chain head has changed."""
        self.gossip.is_news.set()

    # ---- incoming ---------------------------------------------------------------------------------------------

    def _on_turned_away(self, peer: PeerId, proof: bytes) -> None:
        self.contacts.note_turned_away(peer)
        try:
            self.decisions.take_refusal(peer, proof, self.doors.own_membership())
        except WireError as error:
            self.rejections.count(peer, error)

    async def _serve_hello(self, stream: FrameStream, hello: Hello) -> None:
        is_stranger = stream.standing == "stranger"
        answer = self.gate.bare_hello() if is_stranger else self.gate.hello(self.book.data(self.peer_id))
        await stream.write(FrameKind.HELLO, PEER_MESSAGES.encode(answer))
        if hello.run_id and stream.standing == "member":
            self.contacts.note_met(stream.peer)
            self._greet(stream.peer, hello.record, hello.data_port)

    async def _on_contact(self, peer: PeerId, introduction: Introduction) -> None:
        self._greet(peer, introduction.record, introduction.data_port)
        await self.gossip.exchange_with(peer)

    def _greet(self, peer: PeerId, record: bytes, data_port: int) -> None:
        self.gossip.take((record,) if record else (), peer)
        if self.data is not None:
            self.data.meet(peer, data_port)
        if self.admissions is not None and (known := self.book.get(peer)) is not None:
            self._listener.on_record(known, True)  # others may have brought it before it was a member
        self._listener.on_contact(peer)
        self.decisions.greet(peer)

    def _on_evicted(self, peer: PeerId) -> None:
        self.contacts.turn_out(peer)
        if self.data is not None:
            self.data.drop(peer)
        self._listener.on_evicted(peer)

    async def _authorities_of(self, peer: PeerId) -> bytes:
        return await self.fetch_bytes(peer, "authorities", bytes_max=PACKED_BYTES_MAX)

    def _tell_all(self, news: Any) -> None:
        for peer in self.contacts.in_touch:
            self.channel.send(peer, news)

    async def _on_message(self, peer: PeerId, message: Any) -> None:
        if isinstance(message, Records):
            self.gossip.take(message.records, peer)
        elif isinstance(message, Revocations | AuthorityChanges):
            self.decisions.take(message)
        elif isinstance(message, Hello):
            raise WireError("unexpected_frame", "Hello inside a stream")
        else:
            await self._listener.on_message(peer, message)

    async def _on_call(self, peer: PeerId, message: Any) -> Any:
        if not isinstance(message, Records):
            raise WireError("unknown_message", f"{type(message).__name__} has no answer")
        return self.gossip.answer(peer, message)

    # ---- for the daemon ---------------------------------------------------------------------------------------

    def beat(self) -> int | None:
        """For the watchdog: rises while the network's loop runs; None before it does."""
        return self.contacts.num_looks or None

    def addresses(self) -> tuple[str, ...]:
        """Our multiaddrs with /p2p/, those that other machines can use first."""
        return by_reach(self._addresses)

    def join_address(self) -> str:
        """The one to paste behind `dilocoxd join`."""
        # With relays any peer of the run will do, and ours is not reached; a public one leads here from everywhere.
        return next(iter((*self._settings.relays, *self.public, *self.addresses())), "")

    def send(self, peer: PeerId, message: Any) -> None:
        """Queue a message; best effort, in order."""
        self.channel.send(peer, message)

    async def probe(self, peer: PeerId, *, timeout_s: float = 5.0) -> bool:
        """Whether `peer` answers a hello now."""
        try:
            introduction = await introduce(self.gate, peer, record=self.book.data(self.peer_id), timeout_s=timeout_s)
        except (PeerError, WireError):
            return False
        self._greet(peer, introduction.record, introduction.data_port)
        return True

    def payloads_to(self, peer: PeerId) -> RouteView:
        """How payloads travel to `peer`."""
        return self.data.view(peer) if self.data is not None else RouteView(False, "data connections are off here")

    async def send_segment(self, peer: PeerId, header: SegmentHeader, source: Region) -> None:
        """Return when `peer` has confirmed the payload. Raises PeerError (Refused), StoreError."""
        await self.bulk_out.send_segment(peer, header, source)

    async def fetch_bytes(self, peer: PeerId, resource: str, *, bytes_max: int) -> bytes:
        """A small resource of a peer. Raises PeerError (Refused), WireError."""
        return await self.fetch_client.fetch_bytes(peer, resource, bytes_max=bytes_max)
