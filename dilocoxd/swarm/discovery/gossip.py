"""Membership news travels directly between peers: our own record to everybody in touch, all records by push and pull.

Moves signed records only; who counts as live is decided in machines/membership/machine.py from what is told here.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery.contacts import Contacts, Whereabouts
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.swarm.streams.budget import Budget, Rate
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.messages import MessageChannel
from dilocoxd.swarm.streams.streams import unix_ms
from dilocoxd.wire.messages import Records
from dilocoxd.wire.records import PeerRecord

HEARTBEAT_S: Final = 3.0
RECORD_TTL_MS: Final = 30_000
EXCHANGE_S: Final = 5.0
HINTS_S: Final = 10.0
RECORDS_PER_MESSAGE: Final = 64
EXCHANGE_TIMEOUT_S: Final = 10.0

OWN_FILE: Final = "peers.json"
EACH: Final = Rate(per_s=20.0, burst=200.0)
"""Of records that we have not checked before: a signature takes 60 us, and a new peer more."""
NETWORK: Final = Rate(per_s=50.0, burst=500.0)
TOTAL: Final = Rate(per_s=200.0, burst=2000.0)

OnRecord = Callable[[PeerRecord, bool], None]
"""Told each record that is newer than what we knew of its peer, and whether it is the peer's own word: that peer itself
sent it, on a connection that proves who it is. Must not block."""


class Gossip:
    """Spreads and collects records."""

    def __init__(
        self, node: Node, channel: MessageChannel, contacts: Contacts, places: Whereabouts, guard: PeerGuard
    ) -> None:
        self._node = node
        self._channel = channel
        self._contacts = contacts
        self._places = places
        self._guard = guard
        self.on_record: OnRecord = lambda record, is_own_word: None
        self.make_record: Callable[[], bytes] = lambda: b""
        """Our own newest signed record; asked at every heartbeat."""
        self.is_news = asyncio.Event()
        """Set it to send a heartbeat at once (our state or our chain head has changed)."""
        self.counts: Counter[str] = Counter()
        """records_new, records_seen, records_dropped, exchanges, exchanges_failed, hints_failed."""
        self._budget = Budget(asyncio.get_running_loop().time, each=EACH, network=NETWORK, total=TOTAL)

    def take(self, records: tuple[bytes, ...], source: str) -> None:
        """Records from a peer, the DHT or a file; the bad ones are counted against whoever brought them.

        What somebody brings beyond its budget is dropped: gossip repeats itself."""
        now_ms = unix_ms()
        for data in records:
            self.counts["records_seen"] += 1
            if not self._may_check(data, source):
                self.counts["records_dropped"] += 1
                continue
            try:
                record = self._places.book.add(data, now_ms, source)
            except WireError as error:
                self._guard.count(source, error.code)
                continue
            if record is None:
                continue
            self.counts["records_new"] += 1
            # Anybody can make keys, sign records with them and bring those: they say where to ask, not who is there.
            is_own_word = source == record.peer
            if is_own_word and record.state != "left":
                self._places.file.remember(record.peer, record.addresses, min(record.unix_ms, now_ms), data)
            if record.peer not in self._contacts.connected:
                self._contacts.is_woken.set()
            self.on_record(record, is_own_word)

    def _may_check(self, data: bytes, source: str) -> bool:
        if source == OWN_FILE or self._places.book.is_verified(data):
            return True
        return self._budget.take(source, network=self._node.network(PeerId(source)))

    def answer(self, peer: PeerId, message: Records) -> Records:
        """Their records are taken; ours go back."""
        self.take(message.records, peer)
        return Records(self._places.book.to_push(RECORDS_PER_MESSAGE) if message.reply else (), False)

    async def exchange_with(self, peer: PeerId) -> bool:
        """Push and pull with one peer; False if it did not answer."""
        mine = Records(self._places.book.to_push(RECORDS_PER_MESSAGE), True)
        try:
            theirs: Any = await self._channel.call(peer, mine, timeout_s=EXCHANGE_TIMEOUT_S)
            if not isinstance(theirs, Records):
                raise WireError("malformed", "answer to Records is something else")
        except PeerError:
            self.counts["exchanges_failed"] += 1
            return False
        except WireError as error:
            self._guard.count(peer, error.code)
            return False
        self.counts["exchanges"] += 1
        self.take(theirs.records, peer)
        return True

    def publish(self) -> None:
        """Renew our record and queue it for everybody in touch."""
        data = self.make_record()
        if not data:
            return
        self._places.book.add(data, unix_ms())
        for peer in self._contacts.in_touch:
            self._channel.send(peer, Records((data,), False))

    async def run_heartbeat(self) -> None:
        """Our record to everybody in touch, every HEARTBEAT_S and whenever there is news."""
        while True:
            self.is_news.clear()
            self.publish()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self.is_news.wait()
            except TimeoutError:
                continue

    async def run_exchange(self, rng: random.Random) -> None:
        """All records with one peer in touch, chosen at random, every EXCHANGE_S."""
        while True:
            await asyncio.sleep(EXCHANGE_S)
            partners = sorted(self._contacts.in_touch)
            if partners:
                await self.exchange_with(rng.choice(partners))

    async def run_hints(self) -> None:
        """Our record into the DHT, others' records out of it, and the routing table renewed, every HINTS_S."""
        while True:
            me = self._node.peer_id if self._node.is_running else None
            try:
                if me is not None and self._places.book.data(me):
                    await self._node.publish_hint(me, self._places.book.data(me), ttl_s=RECORD_TTL_MS / 1000)
                    self.take(tuple(await self._node.find_hints()), "dht")
                    await self._node.refresh_dht()
            except PeerError:
                self.counts["hints_failed"] += 1
            await asyncio.sleep(HINTS_S)
