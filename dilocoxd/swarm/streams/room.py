"""How much room others have at our end: open streams and half-received frames, each with a limit for a peer, for a
network (/24, or /48 of IPv6) and for all. Pure bookkeeping.

When all room is taken, the least useful gives way: who is worth less to us, then a data connection without an exchange
(it rests), then who is of the network that takes most.
Nobody gives way to somebody who is worth less. Source: protocol/04-streams.md, S10.
"""

import ipaddress
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId

MIB: Final = 1 << 20
_WORKS: Final = 1 << 62
"""Sorts behind every number of a place that rests."""


def network_of(ip: str) -> str:
    """The network that an address is counted with: its /24, or /48 of IPv6; empty for what is no IP address.

    >>> network_of("203.0.113.9"), network_of("2001:db8:1:2::3"), network_of("::ffff:203.0.113.9")
    ('203.0.113.0/24', '2001:db8:1::/48', '203.0.113.0/24')
    """
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(ipaddress.ip_network(f"{address}/{24 if address.version == 4 else 48}", strict=False))


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """Streams by number, half-received frames by bytes."""

    streams_peer: int = 64
    streams_network: int = 512
    """Sites of one cluster or behind one NAT share a network: half of all."""
    streams_all: int = 1024
    bytes_peer: int = 8 * MIB
    bytes_network: int = 32 * MIB
    bytes_all: int = 96 * MIB


class StreamPlace:
    """One stream that was let in; `close` ends it from our side."""

    __slots__ = ("buffered", "close", "is_over", "network", "peer", "rested")

    def __init__(self, peer: PeerId, network: str, close: Callable[[], None]) -> None:
        self.peer = peer
        self.network = network
        self.close = close
        self.buffered = 0
        """Bytes of a frame that is not complete yet."""
        self.is_over = False
        self.rested = 0
        """Order in which places came to rest: the lowest rests longest; 0: an exchange is on it."""


class StreamRoom:
    """All streams that others have open at our end."""

    def __init__(self, limits: RoomLimits | None = None) -> None:
        self._limits = limits or RoomLimits()
        self._places: dict[StreamPlace, None] = {}
        self._streams: Counter[str] = Counter()
        """By peer id and by network; those with none have no entry."""
        self._bytes: Counter[str] = Counter()
        self._all_bytes = 0
        self._num_rests = 0
        self.worth: Callable[[PeerId], int] = lambda peer: 0
        """How useful a peer is: 0 for a stranger, more for who is in touch, most for who takes part in rounds."""
        self.counts: Counter[str] = Counter()
        """streams_evicted, streams_refused, frames_refused."""

    def enter(self, peer: PeerId, network: str, close: Callable[[], None]) -> StreamPlace:
        """A stream begins; pair with `leave`. Raises WireError(too_many_streams)."""
        limits = self._limits
        own = self._streams[peer]
        if own >= limits.streams_peer and not self._end_own(peer):
            self._refuse("streams_refused", f"{own} open, limit {limits.streams_peer}")
        near = self._streams[network] if network else 0
        if near >= limits.streams_network and not self._evict(peer, network, only=network):
            self._refuse("streams_refused", f"{near} open from {network}, limit {limits.streams_network}")
        if len(self._places) >= limits.streams_all and not self._evict(peer, network):
            self._refuse("streams_refused", f"{len(self._places)} open, limit {limits.streams_all}")
        place = StreamPlace(peer, network, close)
        self._places[place] = None
        self._count(self._streams, place, 1)
        return place

    def leave(self, place: StreamPlace) -> None:
        """The stream is over; once is enough."""
        if place.is_over:
            return
        place.is_over = True
        self.shrink(place)
        del self._places[place]
        self._count(self._streams, place, -1)

    def rest(self, place: StreamPlace) -> None:
        """A data connection without an exchange: others may have its room."""
        if not place.is_over:
            self._num_rests += 1
            place.rested = self._num_rests

    @staticmethod
    def work(place: StreamPlace) -> None:
        """The next exchange has begun on it."""
        place.rested = 0

    def grow(self, place: StreamPlace, num_bytes: int) -> None:
        """So many bytes more of a frame wait for its end. Raises WireError(too_many_bytes) when there is no room."""
        limits = self._limits
        own, near = self._bytes[place.peer] + num_bytes, self._bytes[place.network] + num_bytes
        if own > limits.bytes_peer or (place.network and near > limits.bytes_network):
            self._refuse("frames_refused", f"{own} bytes of half-sent frames of a peer, {near} of its network")
        if self._all_bytes + num_bytes > limits.bytes_all and not self._evict(place.peer, place.network, by_bytes=True):
            self._refuse("frames_refused", f"{self._all_bytes} bytes of half-sent frames, limit {limits.bytes_all}")
        place.buffered += num_bytes
        self._all_bytes += num_bytes
        self._count(self._bytes, place, num_bytes)

    def shrink(self, place: StreamPlace) -> None:
        """The frame is complete, or given up."""
        self._all_bytes -= place.buffered
        self._count(self._bytes, place, -place.buffered)
        place.buffered = 0

    @property
    def num_streams(self) -> int:
        return len(self._places)

    @property
    def num_bytes(self) -> int:
        """Of frames that are not complete yet."""
        return self._all_bytes

    def _refuse(self, what: str, why: str) -> None:
        self.counts[what] += 1
        raise WireError("too_many_streams" if what == "streams_refused" else "too_many_bytes", why)

    def _end_own(self, peer: PeerId) -> bool:
        """The connection of this peer that has rested longest makes room; False if all of them work."""
        resting = [place for place in self._places if place.peer == peer and place.rested]
        if resting:
            self._end(min(resting, key=lambda place: place.rested))
        return bool(resting)

    def _evict(self, peer: PeerId, network: str, *, only: str = "", by_bytes: bool = False) -> bool:
        """Make room for one of this peer; False if all others work and are worth as much, and their networks take no
        more."""
        taken = self._bytes if by_bytes else self._streams
        places = [place for place in self._places if not only or place.network == only]
        places = [place for place in places if place.peer != peer or (place.rested and not by_bytes)]
        places = [place for place in places if place.buffered] if by_bytes else places
        if not places:
            return False
        worths = {one: self.worth(one) for one in {place.peer for place in places}}

        def use(place: StreamPlace) -> tuple[int, int, int, int, int]:
            rested = 0 if by_bytes else place.rested
            return worths[place.peer], rested or _WORKS, -taken[place.network], -taken[place.peer], -place.buffered

        least, own = min(places, key=use), self.worth(peer)
        is_less = worths[least.peer] < own
        is_resting = worths[least.peer] == own and least.rested > 0 and not by_bytes
        is_crowd = worths[least.peer] == own and (
            taken[least.network] > taken[network] + 1
            if least.network != network
            else taken[least.peer] > taken[peer] + 1
        )
        if not is_less and not is_resting and not is_crowd:
            return False
        self._end(least)
        return True

    def _end(self, place: StreamPlace) -> None:
        self.counts["streams_evicted"] += 1
        self.leave(place)
        place.close()

    @staticmethod
    def _count(counts: Counter[str], place: StreamPlace, number: int) -> None:
        for key in (place.peer, place.network) if place.network else (place.peer,):
            counts[key] += number
            if counts[key] <= 0:
                del counts[key]
