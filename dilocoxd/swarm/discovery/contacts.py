"""Keeping in touch: connects to every peer we know and are not connected to, and joins separate swarms into one.

The DHT is only a hint. Whom we know comes from records (gossip, DHT, peers.json) and from the bootstrap addresses; a
peer that does not answer is tried again with growing pauses, for ever, so that a healed network or a restarted
bootstrap is found by itself.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery.bootstrap import Contact, reach
from dilocoxd.swarm.discovery.hello import Introduction, introduce
from dilocoxd.swarm.discovery.join_failures import StageFailure
from dilocoxd.swarm.discovery.peers_file import PeersFile
from dilocoxd.swarm.discovery.records import RecordBook
from dilocoxd.swarm.p2pd.addresses import Address
from dilocoxd.swarm.p2pd.connections import is_only_relayed
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.swarm.streams.streams import StreamGate, unix_ms
from dilocoxd.telemetry.catalogue import Event, JoinStageFailed

LOOK_EVERY_S: Final = 2.0
RETRY_FIRST_S: Final = 2.0
RETRY_MAX_S: Final = 60.0
RETRY_RECENT_MAX_S: Final = 10.0
"""Longest pause for a peer that was there a short while ago: how long a healed network may stay unnoticed."""
RECENT_MS: Final = 15 * 60 * 1000
PARALLEL_TRIES: Final = 8
HEARSAY_TRIES: Final = 4
"""Dials under way to peers that we were only told of: whoever tells of many that do not exist delays nobody we met."""
ADDRESSES_DIALLED: Final = 4
"""Of one peer at a time: a record may name sixteen, and every site would dial them all, whosever they are."""
RETRIES_MAX: Final = 2048
STRANGER_S: Final = 7.0
"""So long a connection may be without a membership; with LOOK_EVERY_S it ends within 10 s (M5)."""
ADDED_MAX: Final = 256
"""Addresses to ask, as many as site.toml may have; older ones go when an operator adds more."""
FORGET_AFTER_MS: Final = 24 * 3600 * 1000
"""Peers not heard of for this long are not dialled any more (a bootstrap address always is)."""

OnContact = Callable[[PeerId, Introduction], Awaitable[None]]
"""Told when a peer has answered our hello on a fresh connection."""


@dataclass(slots=True)
class _Retry:
    next_try: float = 0.0
    pause_s: float = RETRY_FIRST_S
    last_error: str = ""


@dataclass(slots=True)
class Whereabouts:
    """All sources of addresses."""

    bootstrap: tuple[Address, ...]
    book: RecordBook
    file: PeersFile
    bootstrap_peers: dict[str, PeerId] = field(default_factory=dict)
    """Bootstrap address -> who answered there."""

    def addresses_of(self, peer: PeerId) -> list[str]:
        """Multiaddrs of a peer: where it was last reached, then what its record says."""
        remembered, record = self.file.peers.get(peer), self.book.get(peer)
        return list(
            dict.fromkeys((*(remembered.addresses if remembered else ()), *(record.addresses if record else ())))
        )

    def to_dial(self, now_ms: int) -> set[PeerId]:
        """Whom we know, without those that said that they left, or were not heard of for FORGET_AFTER_MS (D4).

        What the file holds of a peer that left says where it was; a restarted site asks there once more."""
        heard_ms = {peer: item.seen_unix_ms for peer, item in self.file.peers.items()}
        for peer in self.book.peers():
            if (record := self.book.get(peer)) is None:
                continue
            if record.state == "left":
                heard_ms.pop(peer, None)
            else:
                heard_ms[peer] = max(record.unix_ms, heard_ms.get(peer, 0))
        return {peer for peer, at_ms in heard_ms.items() if at_ms >= now_ms - FORGET_AFTER_MS}


class Contacts:
    """The loop that keeps connections; `connected` is its newest view."""

    def __init__(
        self, node: Node, gate: StreamGate, places: Whereabouts, on_contact: OnContact, emit: Callable[[Event], None]
    ) -> None:
        self._node = node
        self._gate = gate
        self._places = places
        self._on_contact = on_contact
        self._emit = emit
        self._retries: dict[str, _Retry] = {}
        self._dialling: set[str] = set()
        self._hearsay: set[str] = set()
        """Of those under way: peers that we never met."""
        self._slots = asyncio.Semaphore(PARALLEL_TRIES)
        self._met: set[PeerId] = set()
        self._strangers: dict[PeerId, float] = {}
        """When we first saw each connected peer that has shown no membership."""
        self.connected: frozenset[PeerId] = frozenset()
        """Peers that p2pd had a connection to when we last looked (strangers of other runs included)."""
        self.relayed: frozenset[PeerId] = frozenset()
        """Those of them that we are connected to through a relay only."""
        self.num_looks = 0
        """Rises every few seconds while the loop runs and p2pd answers or is known to be dead."""
        self.is_woken = asyncio.Event()
        """Set it to look at once, for example when a new peer became known."""

    @property
    def in_touch(self) -> frozenset[PeerId]:
        """Peers of our run that are connected and have exchanged hellos with us."""
        return self.connected & self._met

    def note_met(self, peer: PeerId) -> None:
        """A peer of our run has said hello to us, so it is connected."""
        self._met.add(peer)
        self.connected |= {peer}

    def note_turned_away(self, peer: PeerId) -> None:
        """It takes us for no member. p2pd may have been connected again before we looked, so no look would tell us:
        we are in touch no more, and say hello at the next look."""
        self._met.discard(peer)

    def turn_out(self, peer: PeerId) -> None:
        """A member was evicted: we are in touch no more, and its connection ends at the next look."""
        self._met.discard(peer)
        self._strangers[peer] = -STRANGER_S
        self.is_woken.set()

    def try_all_now(self) -> None:
        """Forget all pauses: the network has changed, or p2pd has been started again."""
        self._retries.clear()
        self._met.clear()
        self.connected = frozenset()
        self.is_woken.set()

    def add_bootstrap(self, address: Address) -> None:
        """An operator knows where somebody is: ask there, now and until somebody answers."""
        if address.text not in {known.text for known in self._places.bootstrap}:
            self._places.bootstrap = (*self._places.bootstrap, address)[-ADDED_MAX:]
        self._retries.pop(address.text, None)
        self.is_woken.set()

    def last_error(self, peer: PeerId) -> str:
        """Why the newest attempt to reach this peer failed; empty if it did not."""
        retry = self._retries.get(peer)
        return retry.last_error if retry else ""

    async def run(self) -> None:
        """Look, dial, look again; for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                self.is_woken.clear()
                self.num_looks += 1
                try:
                    found = await self._node.connections()
                except PeerError:
                    found = {}  # p2pd is being started again
                self.connected = frozenset(found)
                self.relayed = frozenset(peer for peer, ends in found.items() if is_only_relayed(ends))
                self._met &= self.connected
                await self._turn_out_strangers()
                if self._node.is_running:
                    self._dial_missing(group)
                try:
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self.is_woken.wait()
                except TimeoutError:
                    continue

    async def _turn_out_strangers(self) -> None:
        """End connections that serve nothing (M5). Whom we are dialling just now has not had its say."""
        now = asyncio.get_running_loop().time()
        doors = self._gate.doors
        found = {peer for peer in self.connected - self._dialling if doors.is_stranger(peer, now)}
        self._strangers = {peer: self._strangers.get(peer, now) for peer in found}
        for peer in [peer for peer, since in self._strangers.items() if now - since >= STRANGER_S]:
            del self._strangers[peer]
            with contextlib.suppress(PeerError):
                await self._node.disconnect(peer)

    def _dial_missing(self, group: asyncio.TaskGroup) -> None:
        due = self._places.to_dial(unix_ms()) - self.in_touch - {self._node.peer_id}
        for peer in sorted(due, key=self._next_try):
            if self._gate.doors.is_evicted(peer):
                continue
            is_hearsay = peer not in self._places.file.peers and peer not in self.connected
            if is_hearsay and len(self._hearsay) >= HEARSAY_TRIES:
                continue
            if self._places.addresses_of(peer) or peer in self.connected:
                self._start_dial(group, peer, functools.partial(self._dial_peer, peer), is_hearsay=is_hearsay)
        self._forget_retries(due)
        for address in self._places.bootstrap:
            owner = address.peer or self._places.bootstrap_peers.get(address.text)
            if owner is None or (owner not in self.in_touch and owner != self._node.peer_id):
                self._start_dial(group, address.text, functools.partial(self._dial_bootstrap, address))

    def _next_try(self, peer: PeerId) -> tuple[float, str]:
        retry = self._retries.get(peer)
        return (retry.next_try if retry is not None else 0.0), peer

    def _forget_retries(self, due: Set[PeerId]) -> None:
        if len(self._retries) > RETRIES_MAX:
            places = {address.text for address in self._places.bootstrap}
            kept = {name: retry for name, retry in self._retries.items() if name in due or name in places}
            self._retries = dict(list(kept.items())[-RETRIES_MAX:])

    def _start_dial(
        self, group: asyncio.TaskGroup, name: str, dial: Callable[[], Awaitable[None]], *, is_hearsay: bool = False
    ) -> None:
        retry = self._retries.setdefault(name, _Retry())
        if name not in self._dialling and asyncio.get_running_loop().time() >= retry.next_try:
            self._dialling.add(name)
            if is_hearsay:
                self._hearsay.add(name)
            group.create_task(self._dial(name, dial), name=f"dial {name}")

    async def _dial(self, name: str, dial: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._slots:
                await dial()
            self._retries.pop(name, None)
        except (PeerError, WireError) as error:
            retry = self._retries.setdefault(name, _Retry())
            if isinstance(error, StageFailure) and retry.last_error != str(error):
                self._emit(JoinStageFailed(stage=error.stage, address=name, reason=error.reason))
            retry.last_error = str(error)
            retry.next_try = asyncio.get_running_loop().time() + retry.pause_s
            retry.pause_s = min(self._pause_max_s(name), 2 * retry.pause_s)
        finally:
            self._dialling.discard(name)
            self._hearsay.discard(name)

    def _pause_max_s(self, name: str) -> float:
        """For a peer id or a bootstrap address."""
        peer = self._places.bootstrap_peers.get(name, PeerId(name))
        known = self._places.file.peers.get(peer)
        is_recent = known is not None and unix_ms() - known.seen_unix_ms < RECENT_MS
        return RETRY_RECENT_MAX_S if is_recent else RETRY_MAX_S

    async def _dial_peer(self, peer: PeerId) -> None:
        if peer not in self.connected:
            await self._node.connect(peer, self._places.addresses_of(peer)[:ADDRESSES_DIALLED])
        record = self._places.book.data(self._node.peer_id)
        await self._meet(peer, await introduce(self._gate, peer, record=record))

    async def _dial_bootstrap(self, address: Address) -> None:
        record = self._places.book.data(self._node.peer_id)
        contact: Contact = await reach(self._node, self._gate, address, record=record)
        self._places.bootstrap_peers[address.text] = contact.peer
        self._places.file.remember(contact.peer, (contact.address,), unix_ms())
        await self._meet(contact.peer, contact.introduction)

    async def _meet(self, peer: PeerId, introduction: Introduction) -> None:
        self.note_met(peer)
        await self._on_contact(peer, introduction)
        await self._node.merge_dht(peer)
