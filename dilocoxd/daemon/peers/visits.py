"""What an operator asks about one other site, or tells the network at run time: ping, connect, disconnect.

Sites are named as people see them: by name, short id or peer id. Nothing here decides who is a peer of the run; that
is the hello's affair, as for everybody.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.answers.peers import Ping
from dilocoxd.answers.words import plural
from dilocoxd.daemon.observe.names import SiteNames
from dilocoxd.errors import CommandRefused, ConfigError, PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.site_names import short_id
from dilocoxd.swarm.discovery.hello import Introduction, introduce
from dilocoxd.swarm.p2pd.addresses import parse_address
from dilocoxd.swarm.p2pd.connections import address_text, is_relayed
from dilocoxd.swarm.service import Swarm

PINGS: Final = 4
"""Hellos: the first one may still dial; the least of the times is the link's."""
PING_S: Final = 10.0
NOT_IN_TABLE: Final = "failed to find any peer in table"
"""p2pd has no connection to the peer, and nobody tells it an address."""
NO_WAY: Final = "there is no connection to it, and nobody here knows an address of it: it has left, or is down"
PAYLOAD_BYTES_MAX: Final = 4 << 20
MEASURED_BYTES_MIN: Final = 64 << 10
"""Less says more about the round trip than about the link."""


def times_of(hellos: Sequence[Introduction]) -> tuple[float, float, float]:
    """Shortest and longest round trip, and the clock offset by the hello with the shortest, the surest about it."""
    shortest, *_, longest = sorted(hellos, key=lambda one: one.round_trip_s)
    return shortest.round_trip_s, longest.round_trip_s, shortest.clock_offset_s


def why_silent(error: str) -> str:
    """An error of asking a site, for people: p2pd tells of its tables where it knows no way to a site."""
    return NO_WAY if NOT_IN_TABLE in error else error


@dataclass(frozen=True, slots=True)
class Visits:
    """Commands about the network; called on the daemon's loop."""

    swarm: Swarm
    names: SiteNames
    known: Callable[[], Sequence[PeerId]]
    height: Callable[[], int]

    async def ping(self, site: str) -> Ping:
        """How the site is reached and how well. Raises CommandRefused: unknown, ambiguous, no answer."""
        peer, swarm = self.peer_called(site), self.swarm
        record, hellos = swarm.book.data(swarm.peer_id), []
        try:
            for _ in range(PINGS):
                hellos.append(await introduce(swarm.gate, peer, record=record, timeout_s=PING_S))
            addresses = [address_text(data) for data in (await swarm.node.connections()).get(peer, ())]
            speed = await self._download_speed(peer)
        except (PeerError, WireError) as error:
            reason = self.names.in_words(why_silent(str(error)))
            raise CommandRefused(f"{self.names.of(peer)} does not answer: {reason}") from error
        direct = [address for address in addresses if not is_relayed(address)]
        shortest_s, longest_s, offset_s = times_of(hellos)
        return Ping(
            peer_id=peer,
            name=self.names.of(peer),
            round_trip_s=shortest_s,
            worst_round_trip_s=longest_s,
            is_direct=bool(direct) if addresses else None,
            address=(direct or addresses or [""])[0],
            clock_offset_s=offset_s,
            download_bytes_per_s=speed,
            upload_bytes_per_s=swarm.bulk_out.bytes_per_s.get(peer),
        )

    async def _download_speed(self, peer: PeerId) -> float | None:
        """Of the newest payload that the peer has, if there is one of a useful size; None: not measured."""
        if self.height() == 0:
            return None
        began = time.monotonic()
        try:
            data = await self.swarm.fetch_bytes(peer, f"payload/{self.height() - 1}", bytes_max=PAYLOAD_BYTES_MAX)
        except (PeerError, WireError):
            return None  # dropped, larger than we want to fetch for a ping, or not there yet
        took_s = max(1e-6, time.monotonic() - began)
        return len(data) / took_s if len(data) >= MEASURED_BYTES_MIN else None

    async def connect(self, address: str) -> str:
        """Ask at `address` from now on, until the daemon ends. Raises CommandRefused."""
        try:
            where = parse_address(address)
        except ConfigError as error:
            raise CommandRefused(str(error)) from error
        self.swarm.contacts.add_bootstrap(where)
        return f"{address} is asked now, and again until it answers; put it into network.bootstrap to keep it"

    async def disconnect(self, site: str) -> str:
        """Close the connection. Raises CommandRefused."""
        peer = self.peer_called(site)
        try:
            await self.swarm.node.disconnect(peer)
        except PeerError as error:
            raise CommandRefused(self.names.in_words(str(error))) from error
        self.swarm.contacts.is_woken.set()
        return f"the connection to {self.names.of(peer)} is closed; both sides dial again by themselves"

    def peer_called(self, site: str) -> PeerId:
        """The one peer that is called so. Raises CommandRefused."""
        known = self.known()
        found = [peer for peer in known if site in (peer, self.names.of(peer), short_id(peer))]
        found = found or [peer for peer in known if self.names.of(peer).partition("~")[0] == site]
        if len(found) == 1:
            return found[0]
        if not found and self.names.is_own(site):
            raise CommandRefused(f"{site!r} is this site itself; name another one: `dilocoxd peers` lists them")
        called = ", ".join(sorted(self.names.of(peer) for peer in found or known)[:8])
        if found:
            raise CommandRefused(f"{plural(len(found), 'site')} are called {site!r}: say which of {called}")
        raise CommandRefused(f"no other site is called {site!r}; known: {called or 'none'}")
