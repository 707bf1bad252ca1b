"""Can we be reached from outside? A peer tries, and tells: TCP connections to the addresses in our own signed record.

The peer tries only addresses that are the asker's own, those from which it talks to the peer now, with the ports in the
asker's record, and rarely, so that nobody can have others, or the inside of our network, scanned through us. What the
record does not name, such as the public address of the asker's router, is tried too: so the asker learns of it.
Source: protocol/09-catching-up.md, resource `reach`.
"""

import asyncio
import contextlib
import ipaddress
import json
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import asdict
from typing import Final, Protocol

from dilocoxd.answers.peers import Reach, TriedAddress
from dilocoxd.config.addresses import read_address
from dilocoxd.errors import CommandRefused, ConfigError, PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.addresses import can_reach_others, parse_address
from dilocoxd.wire.codec import one_line

RESOURCE: Final = "reach"
CONNECT_S: Final = 3.0
ADDRESSES_TRIED: Final = 4
SEEN_TRIED: Final = 2
"""Of these: addresses that the asker talks from without naming them."""
EVERY_S: Final = 10.0
"""One try per peer in this time."""
PEERS_TRACKED: Final = 256
ANSWER_BYTES_MAX: Final = 8192
PEERS_ASKED: Final = 3
OTHER_PLACE: Final = "not tried: it is not the address that you talk from"


class Ask(Protocol):
    """swarm.streams.fetch: a small resource of a peer. Raises PeerError, WireError."""

    async def __call__(self, peer: PeerId, resource: str, *, bytes_max: int) -> bytes: ...


class DialBack:
    """The peer's side: answers `reach` of others."""

    def __init__(
        self,
        announced: Callable[[PeerId], Sequence[str]],
        talks_from: Callable[[PeerId], Awaitable[Sequence[str]]],
        clock: Callable[[], float],
    ) -> None:
        """`announced`: addresses in a peer's record; `talks_from`: IP addresses of its connections (PeerError)."""
        self._announced = announced
        self._talks_from = talks_from
        self._clock = clock
        self._asked: OrderedDict[PeerId, float] = OrderedDict()

    async def answer(self, peer: PeerId) -> bytes:
        """JSON list of what became of each address. Raises WireError(busy)."""
        now = self._clock()
        if now - self._asked.get(peer, -EVERY_S) < EVERY_S:
            raise WireError("busy", f"one try per {EVERY_S:g} s")
        self._asked[peer] = now
        self._asked.move_to_end(peer)
        while len(self._asked) > PEERS_TRACKED:
            self._asked.popitem(last=False)
        announced = sorted(self._announced(peer), key=lambda address: not can_reach_others(address))
        own = frozenset(await self._talks_from(peer))
        seen = seen_addresses(announced, own)
        addresses = [*announced[: ADDRESSES_TRIED - len(seen)], *seen]
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(try_address(one, own), name="dial back") for one in addresses]
        return json.dumps([asdict(one.result()) for one in tries]).encode("utf-8")


def seen_addresses(announced: Sequence[str], own: Set[str]) -> list[str]:
    """Where the asker might be reached besides what it announces: IP addresses it talks from, with its first port."""
    named = []
    for address in announced:
        with contextlib.suppress(ConfigError):  # a relay's address, for one
            named.append(parse_address(address))
    unnamed = sorted(own - {where.host for where in named})
    return [read_address(ip).multiaddr(named[0].port) for ip in unnamed[:SEEN_TRIED]] if named else []


async def try_address(address: str, own: frozenset[str]) -> TriedAddress:
    """One TCP connection, closed at once, if the address leads to one of the asker's `own` IP addresses."""
    try:
        async with asyncio.timeout(CONNECT_S):
            where = parse_address(address)
            found = sorted(own.intersection(await _ip_addresses(where.host, where.port)))
            if not found:
                return TriedAddress(address=address, ok=False, error=OTHER_PLACE)
            _, writer = await asyncio.open_connection(found[0], where.port)
    except TimeoutError:
        return TriedAddress(address=address, ok=False, error=f"no answer within {CONNECT_S:g} s")
    except (OSError, ConfigError) as error:
        return TriedAddress(address=address, ok=False, error=str(error)[:200])
    writer.close()
    return TriedAddress(address=address, ok=True, error="")


async def _ip_addresses(host: str, port: int) -> set[str]:
    """What `host` is or resolves to. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {str(ipaddress.ip_address(one[4][0])) for one in found}


async def ask_peers(live: Sequence[PeerId], fetch: Ask) -> Reach:
    """What the first peer that answers finds. Raises CommandRefused when none does."""
    reasons = []
    for peer in live[:PEERS_ASKED]:
        try:
            found = checked(await fetch(peer, RESOURCE, bytes_max=ANSWER_BYTES_MAX))
            return Reach(peer=peer, addresses=found)
        except (PeerError, WireError) as error:
            reasons.append(f"{peer}: {error}")
    raise CommandRefused("; ".join(reasons)[:500] or "no other site is live that could try")


def checked(data: bytes) -> tuple[TriedAddress, ...]:
    """The answer of a peer, which may say anything. Raises WireError."""
    try:
        rows = json.loads(data)
        if not isinstance(rows, list) or len(rows) > ADDRESSES_TRIED:
            raise WireError("malformed", "the answer to reach is no short list")
        return tuple(
            TriedAddress(
                address=one_line(str(row["address"]))[:384],
                ok=row["ok"] is True,
                error=one_line(str(row["error"]))[:200],
            )
            for row in rows
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError("malformed", f"the answer to reach is unreadable ({error})") from error
