"""At which public address is this site? Peers say from where it calls, and whether they can connect to it there.

Asks some of them now and then (resource `reach`), weighs what they say, and announces what enough of them reached. One
peer's word changes nothing: it takes two, in different networks, and more that reached an address than that failed. An
address is only ever added, after all that p2pd knows itself, and never where the operator names one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.peers import TriedAddress
from dilocoxd.answers.status import PublicAddress
from dilocoxd.config.addresses import ip_version, local_words, read_address
from dilocoxd.daemon.peers.dial_back import ANSWER_BYTES_MAX, RESOURCE, Ask, checked
from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId

LOOK_EVERY_S: Final = 30.0
ASK_AGAIN_S: Final = 600.0
FORGET_AFTER_S: Final = 3 * ASK_AGAIN_S
ASK_TIMEOUT_S: Final = 30.0
PEERS_ASKED: Final = 3
PEERS_KEPT: Final = 16
NETWORKS_MIN: Final = 2
"""So many networks must have reached an address before others are told of it."""
ANNOUNCED_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class _Word:
    at: float
    network: str
    reached: dict[str, bool]
    """Public address with our port -> whether the peer connected to it."""


class OutsideView:
    """What peers said last, and what follows. Times are seconds of any clock."""

    def __init__(self, port: int) -> None:
        """`port`: the one that we listen on; addresses with another one are nobody's business."""
        self._port = port
        self._words: OrderedDict[PeerId, _Word] = OrderedDict()

    def note(self, peer: PeerId, network: str, rows: Sequence[TriedAddress], now: float) -> None:
        """A peer that talks to us from `network` (room.network_of; empty: through a relay) has tried `rows`."""
        reached = {found: row.ok for row in rows if (found := self._public(row.address))}
        self._words[peer] = _Word(now, network, reached)
        self._words.move_to_end(peer)
        while len(self._words) > PEERS_KEPT:
            self._words.popitem(last=False)

    def _public(self, text: str) -> str:
        """The address as we would announce it; empty if it is none that could be ours from everywhere."""
        try:
            where = read_address(text)
        except ValueError:
            return ""
        is_public = ip_version(where.host) is not None and not local_words(where.host)
        return where.multiaddr() if is_public and where.port == self._port else ""

    def _fresh(self, now: float) -> list[_Word]:
        return [word for word in self._words.values() if now - word.at < FORGET_AFTER_S]

    def to_ask(self, live: Sequence[PeerId], now: float) -> list[PeerId]:
        """Whose word is missing or old, so that there are some fresh ones."""
        old = [peer for peer in live if peer not in self._words or now - self._words[peer].at >= ASK_AGAIN_S]
        return old[: max(0, PEERS_ASKED - (len(live) - len(old)))]

    def reached(self, now: float) -> tuple[str, ...]:
        """What may be announced: reached from NETWORKS_MIN networks at least, and by more than failed."""
        found = []
        for row in self.rows(now, ()):
            networks = {word.network for word in self._fresh(now) if word.reached.get(row.address)} - {""}
            if len(networks) >= NETWORKS_MIN and 2 * row.num_reached > row.num_tried:
                found.append(row.address)
        return tuple(found[:ANNOUNCED_MAX])

    def rows(self, now: float, announced: Sequence[str]) -> tuple[PublicAddress, ...]:
        """Each address that peers saw us at, best first."""
        words = self._fresh(now)
        rows = []
        for address in dict.fromkeys(address for word in words for address in word.reached):
            tries = [word.reached[address] for word in words if address in word.reached]
            rows.append(
                PublicAddress(
                    address=address, num_tried=len(tries), num_reached=sum(tries), is_announced=address in announced
                )
            )
        return tuple(sorted(rows, key=lambda row: (-row.num_reached, -row.num_tried, row.address)))


class OutsideWatch:
    """Keeps the view up to date; called on the daemon's loop."""

    def __init__(
        self,
        view: OutsideView,
        fetch: Ask,
        live: Callable[[], Sequence[PeerId]],
        network: Callable[[PeerId], str],
        announce: Callable[[tuple[str, ...]], None],
    ) -> None:
        """`announce`: told what enough peers reached, after each look."""
        self._view = view
        self._fetch = fetch
        self._live = live
        self._network = network
        self._announce = announce

    async def run(self) -> None:
        """Until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for peer in self._view.to_ask(self._live(), now()):
                self._view.note(peer, self._network(peer), await self._ask(peer), now())
            self._announce(self._view.reached(now()))

    async def _ask(self, peer: PeerId) -> tuple[TriedAddress, ...]:
        """What the peer found; nothing where it does not say."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return checked(await self._fetch(peer, RESOURCE, bytes_max=ANSWER_BYTES_MAX))
        except (PeerError, WireError, TimeoutError):
            return ()
