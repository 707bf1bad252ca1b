"""The module that knows hivemind: p2pd and the DHT node, living in our own event loop.

Moves bytes between us and p2pd (streams, dialling) and keeps small hints in the DHT. Decides nothing.

What it works around (hivemind 1.1.12, all seen in trials):
- ``import hivemind`` pulls in torch: slim_import.py.
- its control sockets lie in the shared temporary directory, open to every local user: here in a 0700 directory.
- p2pd exits when none of its bootstrap peers answers: it is started without any, and connected afterwards.
- p2pd listens with SO_REUSEPORT, so a second daemon on the same port would start and steal half the connections: the
  port is probed with an ordinary bind first.
- pending unary calls hang for ever when p2pd dies: every call here has a time-out, and `wait_p2pd_death` tells. So do
  `create` and its own time-out, which waits for a p2pd that may be frozen: `start` has a limit and ends what it began.
"""

import asyncio
import contextlib
import logging
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from pathlib import Path
from typing import Any, Final

from dilocoxd.errors import PeerError, WorkerError
from dilocoxd.ids import PEER_ID_FORM, PeerId
from dilocoxd.ipc.socket_folder import PREFIX, has_room, short_parent
from dilocoxd.swarm.p2pd.addresses import circuit_through, multiaddr_bytes
from dilocoxd.swarm.p2pd.binary import check_binary
from dilocoxd.swarm.p2pd.calls import keep_calls
from dilocoxd.swarm.p2pd.connections import Networks, ip_of
from dilocoxd.swarm.p2pd.fence import DhtFence
from dilocoxd.swarm.p2pd.hints import HintCheck, OnlyOurRecords, create_dht
from dilocoxd.swarm.p2pd.peer_ids import fresh_peer_id, id_bytes
from dilocoxd.swarm.p2pd.process import P2pdChanges, fenced, hear_failures, p2pd_class, p2pd_log
from dilocoxd.swarm.p2pd.relays import HOP_PROTOCOL, deny
from dilocoxd.swarm.p2pd.settings import NodeSettings, hold_ports
from dilocoxd.swarm.p2pd.slim_import import import_slim
from dilocoxd.swarm.p2pd.unread import UnreadStreams
from dilocoxd.swarm.streams.room import network_of

import_slim()

from hivemind import hivemind_cli  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg  # noqa: E402
from hivemind.proto import p2pd_pb2  # noqa: E402

SOCKET_NAME_BYTES: Final = len("p2pclient-") + 11 + len(".sock")
BACKOFF_POLL_S: Final = 1.0
START_SLACK_S: Final = 5.0
_REMOTE_KEY: Final = re.compile(rf"remote key matches ({PEER_ID_FORM})")

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
StreamHandler = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Node:
    """p2pd and DHT node. `start` may be called again after p2pd died: same identity, same ports, same handlers."""

    def __init__(self, settings: NodeSettings, check: HintCheck, count_bad: Callable[[str], None]) -> None:
        self._settings = settings
        self._validator = OnlyOurRecords(settings.hint_key, check, count_bad)
        self._fence = DhtFence(time.monotonic, settings.may_ask)
        self._count_bad = count_bad
        self._listen: tuple[str, ...] = ()
        self._handlers: dict[str, StreamHandler] = {}
        self._serving: set[asyncio.Task[Any]] = set()
        self._networks = Networks()
        self._unread = UnreadStreams()
        self._p2p: Any = None
        self._dht: Any = None
        self._temporary_dir: tempfile.TemporaryDirectory[str] | None = None
        self._log = p2pd_log(settings.log_path)
        self.num_starts = 0

    @property
    def peer_id(self) -> PeerId:
        return PeerId(self._running().peer_id.to_base58())

    @property
    def p2pd_pid(self) -> int:
        return int(self._running()._child.pid)

    @property
    def is_running(self) -> bool:
        return self._p2p is not None and self._p2p._child.returncode is None

    def _running(self) -> Any:
        if self._p2p is None:
            raise PeerError("p2pd is not running")
        return self._p2p

    async def start(self) -> None:
        """Start p2pd and the DHT node, register the handlers. Raises ConfigError (port), WorkerError (p2pd)."""
        await self._tear_down(is_graceful=False)
        await asyncio.to_thread(check_binary, Path(hivemind_cli.__file__).parent / "p2pd")
        os.environ["GOMEMLIMIT"] = f"{self._settings.p2pd_memory_mib}MiB"  # p2pd inherits our environment
        with hold_ports(self._listen or self._settings.listen) as self._listen:
            await self._create_in_time(self._listen)
        self.num_starts += 1

    async def _create_in_time(self, listen: tuple[str, ...]) -> None:
        begun: list[Any] = []
        limit_s = self._settings.startup_timeout_s + START_SLACK_S
        try:
            async with asyncio.timeout(limit_s):
                await self._create(listen, begun)
                begun.clear()
        except TimeoutError as error:
            raise WorkerError(f"p2pd did not start: no answer within {limit_s:g} s; read logs/p2pd.log") from error
        except (P2PDaemonError, OSError, EOFError) as error:
            why = str(error) or f"it ended before it served ({type(error).__name__}); read logs/p2pd.log"
            raise WorkerError(f"p2pd did not start: {why}") from error
        finally:
            for p2p in begun:
                self._drop(p2p)

    async def _create(self, listen: tuple[str, ...], begun: list[Any]) -> None:
        self._p2p = await self._p2p_class(begun).create(
            host_maddrs=list(listen),
            announce_maddrs=list(self._settings.announce) or None,
            identity_path=str(self._settings.identity_path),
            check_if_identity_free=False,
            startup_timeout=self._settings.startup_timeout_s,
            use_auto_relay=bool(self._settings.relays),
            trusted_relays=list(self._settings.relays) or None,
            nat_port_map=self._settings.map_port,
            auto_nat=self._settings.hole_punching,
            force_reachability=self._settings.reachability,
            dht_mode="client",  # libp2p's own public DHT: nobody here uses it
        )
        keep_calls(self._p2p)
        self._dht = await create_dht(self._p2p, self._validator, self._settings.is_evicted)
        if not self._settings.relay_for_others:
            self._handlers[HOP_PROTOCOL] = deny
        for protocol in self._handlers:
            await self._register(protocol)

    def _drop(self, p2p: Any) -> None:
        """End a p2pd that did not come up: hivemind keeps it, and with it the port, when `create` is cut short."""
        self._p2p = self._dht = None
        p2p._terminate()
        if p2p._child is not None and p2p._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                p2p._child.kill()

    def _p2p_class(self, begun: list[Any]) -> Any:
        directory = self._settings.socket_dir.absolute()
        if not has_room(directory, SOCKET_NAME_BYTES):
            if self._temporary_dir is None:
                self._temporary_dir = tempfile.TemporaryDirectory(prefix=PREFIX, dir=short_parent(SOCKET_NAME_BYTES))
            directory = Path(self._temporary_dir.name)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        for stale in [*directory.glob("p2pd-*.sock"), *directory.glob("p2pclient-*.sock")]:
            stale.unlink(missing_ok=True)
        around = P2pdChanges(
            directory,
            self._log,
            {"relayService": int(self._settings.relay_for_others)},
            lambda handler: fenced(handler, self._fence, self._count_bad),
        )
        return p2pd_class(P2P, around, begun)

    async def wait_p2pd_death(self) -> int:
        """Exit status of p2pd, once it is gone; the only reliable sign that it is."""
        return int(await self._running()._child.wait())

    async def addresses(self) -> list[str]:
        """Full multiaddrs (with /p2p/) to hand to others; loopback ones only if nothing else. Raises PeerError."""
        try:
            async with asyncio.timeout(10):
                found = [str(address) for address in await self._running().get_visible_maddrs(latest=True)]
        except (ValueError, OSError, EOFError, TimeoutError, P2PDaemonError) as error:
            raise PeerError(f"p2pd does not tell its addresses: {error}") from error
        tcp = [address for address in found if "/tcp/" in address and "/quic" not in address and "/ws" not in address]
        public = [address for address in tcp if not address.startswith(("/ip4/127.", "/ip6/::1/"))]
        # p2pd itself tells of a relay only if its address is a public one.
        relayed = [f"{circuit_through(relay)}/p2p/{self.peer_id}" for relay in self._settings.relays]
        return list(dict.fromkeys((*(public or tcp), *relayed)))

    # ---- streams ----------------------------------------------------------------------------------------------

    async def set_handler(self, protocol: str, handler: StreamHandler) -> None:
        """Serve streams that peers open on `protocol`; survives restarts of p2pd."""
        self._handlers[protocol] = handler
        if self._p2p is not None:
            await self._register(protocol)

    async def _register(self, protocol: str) -> None:
        async def serve(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._serving.add(task)
            peer = PeerId(info.peer_id.to_base58())
            self._networks.note(peer, network_of(ip_of(info.addr.to_bytes())))
            self._unread.note(peer, writer)
            try:
                await self._handlers[protocol](peer, reader, writer)
            except asyncio.CancelledError:
                return  # only _tear_down cancels; nobody awaits this task, and asyncio's streams would log it as a bug
            finally:
                self._serving.discard(task)
                writer.close()

        async with asyncio.timeout(10):
            await self._p2p.add_binary_stream_handler(protocol, serve)

    def network(self, peer: PeerId) -> str:
        """The network that the peer's newest stream came from (room.network_of); empty: through a relay, or none."""
        return self._networks.of(peer)

    async def _ask_p2pd(self, request: Any, what: str, timeout_s: float) -> tuple[Any, Stream]:
        """p2pd's answer on a control connection of its own; on any failure the connection is closed."""
        connector = self._running()._client.control.daemon_connector
        writer: asyncio.StreamWriter | None = None
        is_answered = False
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await connector.open_connection()
                await write_pbmsg(writer, request)
                response = p2pd_pb2.Response()
                await read_pbmsg_safe(reader, response)
            if response.type == p2pd_pb2.Response.ERROR:
                said = " ".join(response.error.msg.split())  # of dials it makes a list over several lines
                raise PeerError(f"{what}: {said}")
            is_answered = True
        except TimeoutError as error:
            raise PeerError(f"{what}: no answer within {timeout_s:g} s") from error
        except (OSError, EOFError) as error:
            raise PeerError(f"{what}: p2pd is gone ({type(error).__name__})") from error
        finally:
            if writer is not None and not is_answered:
                writer.close()
        return response, (reader, writer)

    async def open_stream(self, peer: PeerId, protocol: str, *, timeout_s: float = 10.0) -> Stream:
        """A new stream to `peer`, whose id p2pd has authenticated. Raises PeerError."""
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.STREAM_OPEN,
            streamOpen=p2pd_pb2.StreamOpenRequest(
                peer=id_bytes(peer), proto=[protocol], timeout=max(1, round(timeout_s))
            ),
        )
        _, (reader, writer) = await self._ask_p2pd(request, f"open {protocol} to {peer}", timeout_s)
        self._unread.note(peer, writer)
        return reader, writer

    async def end_unread(self, connected: Set[PeerId]) -> None:
        """End what was closed here and is never read there; call it every few seconds. Raises PeerError."""
        for peer in self._unread.look(connected):
            await self.disconnect(peer)
            self._unread.forget(peer)

    async def connect(self, peer: PeerId, addresses: list[str], *, timeout_s: float = 15.0) -> None:
        """Have a connection to `peer`, dialling these addresses (no /p2p/ part needed). Raises PeerError.

        libp2p refuses for about 5 s to dial again what has just failed ("dial backoff"); that is waited out.
        """
        dial = []
        for address in addresses:
            with contextlib.suppress(ValueError, OverflowError):  # what somebody's record says need not make sense
                dial.append(multiaddr_bytes(address.removesuffix(f"/p2p/{peer}")))
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.CONNECT,
            connect=p2pd_pb2.ConnectRequest(peer=id_bytes(peer), addrs=dial, timeout=max(1, round(timeout_s))),
        )
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                left_s = max(1.0, deadline - time.monotonic())
                _, (_, writer) = await self._ask_p2pd(request, f"connect to {peer}", left_s)
            except PeerError as error:
                if "dial backoff" not in str(error) or time.monotonic() + BACKOFF_POLL_S > deadline:
                    raise
                await asyncio.sleep(BACKOFF_POLL_S)
            else:
                writer.close()
                return

    async def ask_peer_id(self, address: str, *, timeout_s: float = 10.0) -> PeerId:
        """Peer id of whoever answers at `address` (a multiaddr without /p2p/). Raises PeerError.

        libp2p dials only known ids, so we dial an id that nobody has: the handshake's refusal names the real one.
        """
        try:
            await self.connect(fresh_peer_id(), [address], timeout_s=timeout_s)
        except PeerError as error:
            match = _REMOTE_KEY.search(str(error))
            if match is None:
                raise
            return PeerId(match[1])
        raise PeerError(f"{address} claims to be whoever we ask for")

    async def connections(self, *, timeout_s: float = 10.0) -> dict[PeerId, tuple[bytes, ...]]:
        """Peers that p2pd is connected to, with the remote ends as binary multiaddresses. Raises PeerError."""
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS)
        response, (_, writer) = await self._ask_p2pd(request, "list peers", timeout_s)
        writer.close()
        found: dict[PeerId, tuple[bytes, ...]] = {}
        for info in response.peers:
            peer = PeerId(PeerID(info.id).to_base58())
            found[peer] = (*found.get(peer, ()), *info.addrs)
        return found

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to `peer`. Raises PeerError."""
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.DISCONNECT, disconnect=p2pd_pb2.DisconnectRequest(peer=id_bytes(peer))
        )
        _, (_, writer) = await self._ask_p2pd(request, f"disconnect from {peer}", 10.0)
        writer.close()

    # ---- the DHT: hints only ----------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _dht_call(self, what: str, timeout_s: float) -> AsyncIterator[Any]:
        """The DHT node, with every failure of a call on it made a PeerError."""
        if self._dht is None:
            raise PeerError("p2pd is not running")
        try:
            async with asyncio.timeout(timeout_s):
                yield self._dht
        except TimeoutError:
            raise PeerError(f"DHT: {what}: no answer within {timeout_s:g} s") from None
        except (P2PDaemonError, P2PHandlerError, OSError, EOFError) as error:
            raise PeerError(f"DHT: {what}: {error}") from error

    async def merge_dht(self, peer: PeerId) -> bool:
        """Put a connected peer into our routing table and us into its; joins two separate DHTs. False if it is mute.

        Raises PeerError.
        """
        async with self._dht_call(f"merge with {peer}", 20) as dht:
            if await dht.protocol.call_ping(PeerID(id_bytes(peer))) is None:
                return False
            await dht.find_nearest_nodes([dht.node_id])
        return True

    async def refresh_dht(self) -> None:
        """Walk to a random key, which renews the routing table (hivemind's own refresh is broken). Raises PeerError."""
        async with self._dht_call("refresh", 20) as dht:
            await dht.find_nearest_nodes([DHTID.generate()])

    async def publish_hint(self, peer: PeerId, signed_record: bytes, *, ttl_s: float) -> bool:
        """Store our record under this run's key; values are not republished, so call it every ttl / 3.

        Raises PeerError.
        """
        async with self._dht_call("store", 20) as dht:
            expiration = time.time() + ttl_s
            stored = await dht.store(
                self._settings.hint_key, signed_record, expiration_time=expiration, subkey=str(peer)
            )
        return bool(stored)

    async def find_hints(self) -> list[bytes]:
        """Signed records that the DHT holds for this run, each checked by `check`; possibly old, possibly not all.

        Raises PeerError.
        """
        async with self._dht_call("get", 20) as dht:
            found = await dht.get(self._settings.hint_key, latest=True)
        if found is None or not isinstance(found.value, dict):
            return []
        return [item.value for item in found.value.values() if isinstance(item.value, bytes)]

    # ---- end --------------------------------------------------------------------------------------------------

    async def shutdown(self) -> None:
        """Stop serving, leave the DHT, end p2pd (killed if it does not go within 5 s)."""
        await self._tear_down(is_graceful=True)
        if self._temporary_dir is not None:
            self._temporary_dir.cleanup()
            self._temporary_dir = None

    async def _tear_down(self, *, is_graceful: bool) -> None:
        serving = [task for task in self._serving if task is not asyncio.current_task()]
        for task in serving:
            task.cancel()
        if serving:
            await asyncio.wait(serving, timeout=5)
        p2p, self._p2p, dht, self._dht = self._p2p, None, self._dht, None
        if p2p is None:
            return
        if is_graceful and dht is not None and p2p._child.returncode is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await dht.shutdown()
        try:
            async with asyncio.timeout(5):
                await p2p.shutdown()
        except TimeoutError:
            logging.getLogger(__name__).warning("p2pd %d does not end; killing it", p2p._child.pid)
            p2p._child.kill()
            await p2p._child.wait()
        hear_failures(p2p)
