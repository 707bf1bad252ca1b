"""Joining: from an address that somebody typed to a peer that speaks our protocol, in stages that name their failure.

Stages: resolve the name, TCP connect, libp2p handshake, hello (protocol version, run), clock, and for a newcomer the
manifest. Each has its own time-out; all addresses are tried at once; rounds of tries repeat until the time is up.
"""

import asyncio
import contextlib
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dilocoxd.config.addresses import read_address
from dilocoxd.config.loading import FILE_BYTES_MAX
from dilocoxd.config.manifest import Manifest, manifest_from_canonical
from dilocoxd.errors import ConfigError, PeerError, WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.discovery.asking import run_asking
from dilocoxd.swarm.discovery.hello import Introduction, introduce
from dilocoxd.swarm.discovery.identity import create, load
from dilocoxd.swarm.discovery.join_failures import OTHER_PEER, UNKNOWN_NAME, JoinError, StageFailure
from dilocoxd.swarm.p2pd.addresses import Address, parse_address
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.swarm.p2pd.settings import NodeSettings
from dilocoxd.swarm.streams.doorkeeper import Doorkeeper
from dilocoxd.swarm.streams.fetch import FetchClient
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.refusals import NOT_LET_IN, Refused
from dilocoxd.swarm.streams.streams import StreamGate
from dilocoxd.wire.authorities import PACKED_BYTES_MAX, AuthorityChange, unpack_changes

T = TypeVar("T")

RESOLVE_TIMEOUT_S: Final = 5.0
TCP_TIMEOUT_S: Final = 5.0
HANDSHAKE_TIMEOUT_S: Final = 10.0
HELLO_TIMEOUT_S: Final = 10.0
CLOCK_SKEW_MAX_S: Final = 60.0
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 10.0
NAMES_MAX_S: Final = 30.0
"""So long where no name is known and no name server answers, whatever the time-out: there is nobody to wait for."""
OTHER_PROTOCOL_SIGNS: Final = ("did not have trailing newline", "message was too large")
"""In p2pd's words: what answered is no libp2p. Who merely closes may be a port forward to a site that starts."""
NAMELESS: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""What a name server says of a name that does not exist; it says other things when it cannot be asked."""
NOT_LISTED: Final = "not_allowed"
"""The code of a site that lets in whom network.peers_allowed names."""
FINAL_REFUSALS: Final = frozenset({"wrong_protocol"}) | NOT_LET_IN


@dataclass(frozen=True, slots=True)
class Access:
    """How a newcomer reaches a run: addresses, and what it shows there."""

    addresses: tuple[str, ...]
    timeout_s: float
    tell: Callable[[str], None]
    """Gets one line per failure."""
    identity: Path | None = None
    """The key that `membership` names; None: one that is thrown away."""
    membership: bytes = b""
    """Encoded; empty where there is none to show."""

    def parsed(self) -> list[Address]:
        """The addresses. Raises ConfigError."""
        return [parse_address(text) for text in self.addresses]


class NotListed(ConfigError):
    """Whom we asked lets in nobody but those that it lists, and us not."""


@dataclass(frozen=True, slots=True)
class Contact:
    """A peer that answered our hello, and where."""

    peer: PeerId
    address: str
    """Multiaddr with IP, without /p2p/."""
    introduction: Introduction


async def _resolve(address: Address) -> list[str]:
    if address.is_ip:
        return [address.host]
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            return await _asked_of_resolver(address.host, address.port)
    except TimeoutError:
        raise StageFailure(address, "resolve", f"no answer from DNS for {address.host!r}") from None
    except (OSError, UnicodeError) as error:
        code = UNKNOWN_NAME if isinstance(error, UnicodeError) or error.errno in NAMELESS else ""
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StageFailure(address, "resolve", f"the name {address.host!r} is not known ({why})", code=code) from error


async def _asked_of_resolver(host: str, port: int) -> list[str]:
    """The IPs of a name. Raises OSError, UnicodeError.

    In a thread that nobody waits for: a loop waits at its end for what it has asked itself, and a resolver whose name
    servers are all silent takes a minute.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | OSError | UnicodeError) -> None:
        if answer.done():
            return
        if isinstance(found, list):
            answer.set_result(found)
        else:
            answer.set_exception(found)

    def ask() -> None:
        found: list[str] | OSError | UnicodeError
        try:
            items = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(item[4][0]) for item in items))
        except (OSError, UnicodeError) as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
    return await answer


async def _connect_tcp(address: Address, ips: list[str]) -> str:
    """The first IP that accepts a TCP connection."""
    reasons = []
    for ip in ips:
        try:
            async with asyncio.timeout(TCP_TIMEOUT_S):
                _, writer = await asyncio.open_connection(ip, address.port)
        except TimeoutError:
            reasons.append(f"{ip} port {address.port} does not answer; check address, firewall and port forwarding")
        except ConnectionRefusedError:
            reasons.append(f"{ip} port {address.port} is closed: nothing listens there")
        except OSError as error:
            reasons.append(f"{ip} port {address.port} cannot be reached ({error.strerror or error})")
        else:
            writer.close()
            return ip
    raise StageFailure(address, "connect", "; ".join(reasons))


async def _shake_hands(node: Node, address: Address, place: str) -> PeerId:
    """Peer id of whoever is there, connected."""
    try:
        peer = address.peer or await node.ask_peer_id(place, timeout_s=HANDSHAKE_TIMEOUT_S)
        await node.connect(peer, [place], timeout_s=HANDSHAKE_TIMEOUT_S)
    except PeerError as error:
        text = str(error)
        if "remote key matches " in text:
            other = text.split("remote key matches ")[1].split()[0]
            reason = f"another peer answers there: {other}"
            raise StageFailure(address, "handshake", reason, code=OTHER_PEER) from error
        reason = (
            f"something accepts connections on port {address.port}, but it is no dilocoxd: another program has that"
            " port, or a firewall or proxy answers where no site is; check address and port"
        )
        speaks_otherwise = any(sign in text for sign in OTHER_PROTOCOL_SIGNS)
        raise StageFailure(address, "handshake", reason, is_final=speaks_otherwise) from error
    return peer


async def reach(node: Node, gate: StreamGate, address: Address, *, record: bytes = b"") -> Contact:
    """The peer at `address`, introduced. Raises StageFailure."""
    ip = await _connect_tcp(address, await _resolve(address))
    place = read_address(ip).multiaddr(address.port)
    peer = await _shake_hands(node, address, place)
    if peer == node.peer_id:
        raise StageFailure(address, "handshake", "this address is our own", is_final=True)
    try:
        introduction = await introduce(gate, peer, record=record, timeout_s=HELLO_TIMEOUT_S)
    except Refused as error:
        reason = f"refused: {error.detail} ({error.code})"
        raise StageFailure(address, "hello", reason, is_final=error.code in FINAL_REFUSALS, code=error.code) from error
    except (PeerError, WireError) as error:
        raise StageFailure(address, "hello", str(error)) from error
    if abs(introduction.clock_offset_s) > CLOCK_SKEW_MAX_S:
        reason = f"its clock is {introduction.clock_offset_s:+.0f} s from ours; set both by NTP"
        raise StageFailure(address, "clock", reason, is_final=True)
    return Contact(peer, place, introduction)


async def reach_any(
    node: Node, gate: StreamGate, addresses: Sequence[Address], *, timeout_s: float, tell: Callable[[str], None]
) -> Contact:
    """The first peer that answers; failures before the last are told. Raises JoinError when the time is up.

    Somebody waits who can correct a name that does not exist: it is not asked for again, as a service would.
    """
    started = time.monotonic()
    failures: dict[str, StageFailure] = {}
    told: dict[str, str] = {}
    pause_s = RETRY_FIRST_S
    while True:
        todo = [a for a in addresses if not (a.text in failures and failures[a.text].is_in_vain)]
        contact = await _first_contact(node, gate, todo, failures)
        if contact is not None:
            return contact
        listed = [failures[a.text] for a in addresses if a.text in failures]
        waited_s = time.monotonic() - started
        is_nameless = all(one.stage == "resolve" for one in listed)
        left_s = (min(timeout_s, NAMES_MAX_S) if is_nameless else timeout_s) - waited_s
        if left_s <= RETRY_FIRST_S or all(failure.is_in_vain for failure in listed):
            raise JoinError(listed, waited_s)
        for failure in listed:
            if told.get(failure.address.text) != str(failure):
                told[failure.address.text] = str(failure)
                tell(failure.told if failure.is_in_vain else f"{failure.told}; trying again")
        await asyncio.sleep(min(pause_s, left_s - RETRY_FIRST_S))
        pause_s = min(RETRY_MAX_S, 2 * pause_s)


async def _first_contact(
    node: Node,
    gate: StreamGate,
    addresses: Sequence[Address],
    failures: dict[str, StageFailure],
) -> Contact | None:
    """All addresses at once; the first that answers ends the others."""
    contacts: list[Contact] = []
    tasks: list[asyncio.Task[None]] = []

    async def try_one(address: Address) -> None:
        try:
            contacts.append(await reach(node, gate, address))
        except StageFailure as failure:
            failures[address.text] = failure
            return
        for task in tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async with asyncio.TaskGroup() as group:
        tasks += [group.create_task(try_one(address), name=f"reach {address.text}") for address in addresses]
    return contacts[0] if contacts else None


async def ask_peer(
    access: Access, question: Callable[[StreamGate, Contact], Awaitable[T]], *, run_id: RunId | None
) -> T:
    """What `question` gets from the first peer that answers.

    `run_id`: the run that we belong to; None: any. Raises ConfigError if we are not let in, JoinError, and what
    `question` raises.
    """
    addresses = access.parsed()
    with tempfile.TemporaryDirectory(prefix="dilocoxd-join-") as folder:
        key = load(access.identity) if access.identity else create(Path(folder) / "identity.key")
        guard = PeerGuard(asyncio.get_running_loop().time)
        node = Node(
            NodeSettings(key.path, Path(folder), ("/ip4/127.0.0.1/tcp/0",)),
            lambda data, expiration: key.peer_id,
            lambda code: None,
        )
        gate = StreamGate(node, run_id, guard, Doorkeeper(own=access.membership))
        try:
            await node.start()
            contact = await reach_any(node, gate, addresses, timeout_s=access.timeout_s, tell=access.tell)
            return await question(gate, contact)
        except JoinError as error:
            refused = next((one for one in error.failures if one.code in NOT_LET_IN), None)
            if refused is None:
                _require_a_name(error)
                raise
            where, why = refused.address.text, refused.reason
            if refused.code == NOT_LISTED:
                raise NotListed(
                    f"{where} does not let this site in: {why}; ask its operator to list this site there"
                ) from error
            raise ConfigError(f"{where} does not let this site in: {why}; ask for a new link") from error
        finally:
            await node.shutdown()


def _require_a_name(error: JoinError) -> None:
    """Raise ConfigError if all that was given are names that do not exist."""
    if all(one.code == UNKNOWN_NAME for one in error.failures):
        unknown = "; ".join(dict.fromkeys(one.reason for one in error.failures))
        raise ConfigError(f"{unknown}; check how it is written, or give the site's IP address in its place") from error


async def find_manifest(access: Access) -> Manifest:
    """The coroutine of `fetch_manifest`."""

    async def question(gate: StreamGate, contact: Contact) -> Manifest:
        return await _fetch_manifest_from(gate, contact, access.parsed())

    return await ask_peer(access, question, run_id=None)


async def _fetch_manifest_from(gate: StreamGate, contact: Contact, addresses: Sequence[Address]) -> Manifest:
    address = next((a for a in addresses if a.peer == contact.peer), addresses[0])
    try:
        data = await FetchClient(gate).fetch_bytes(contact.peer, "manifest", bytes_max=FILE_BYTES_MAX)
    except Refused as error:
        raise JoinError([StageFailure(address, "manifest", error.detail, code=error.code)]) from error
    except (PeerError, WireError) as error:
        raise JoinError([StageFailure(address, "manifest", f"sends no manifest: {error}")]) from error
    manifest = manifest_from_canonical(data, source=address.text)
    if manifest.run_id != contact.introduction.run_id:
        raise ConfigError(
            f"{address.text}: the manifest it sent belongs to run {manifest.run_id}, but it says that it is in"
            f" {contact.introduction.run_id}; ask another peer"
        )
    return manifest


def fetch_authorities(access: Access, run_id: RunId) -> list[AuthorityChange]:
    """The changes of the run's authorities that one of these peers knows; no signature is checked here.

    Raises JoinError, ConfigError. Blocks; runs its own event loop.
    """

    async def question(gate: StreamGate, contact: Contact) -> list[AuthorityChange]:
        try:
            data = await FetchClient(gate).fetch_bytes(contact.peer, "authorities", bytes_max=PACKED_BYTES_MAX)
            return unpack_changes(data)
        except (PeerError, WireError) as error:
            address = access.parsed()[0]
            raise JoinError([StageFailure(address, "authorities", f"sends no authorities: {error}")]) from error

    return run_asking(ask_peer(access, question, run_id=run_id))


def fetch_manifest(access: Access) -> Manifest:
    """The manifest of the run that one of these peers is in. Raises JoinError, ConfigError.

    Blocks; runs its own event loop.
    """
    return run_asking(find_manifest(access))
