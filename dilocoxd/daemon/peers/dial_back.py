"""Can we be reached from outside? A peer tries, and tells: TCP connections to the addresses in our own signed record.

The peer tries only addresses that the asker's record announces, which it dials anyway to meet us, and rarely, so that
nobody can have others scanned through us. Source: protocol/09-catching-up.md, resource `reach`.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from dilocoxd.errors import CommandRefused, ConfigError, PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.addresses import can_reach_others, parse_address

RESOURCE: Final = "reach"
CONNECT_S: Final = 3.0
ADDRESSES_TRIED: Final = 4
EVERY_S: Final = 10.0
"""One try per peer in this time."""
PEERS_TRACKED: Final = 256
ANSWER_BYTES_MAX: Final = 8192
PEERS_ASKED: Final = 3
Ask = Callable[..., Any]


class DialBack:
    """The peer's side: answers `reach` of others."""

    def __init__(self, addresses_of: Callable[[PeerId], Sequence[str]], clock: Callable[[], float]) -> None:
        self._addresses_of = addresses_of
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
        addresses = sorted(self._addresses_of(peer), key=lambda address: not can_reach_others(address))
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(try_address(one), name="dial back") for one in addresses[:ADDRESSES_TRIED]]
        return json.dumps([one.result() for one in tries]).encode("utf-8")


async def try_address(address: str) -> dict[str, Any]:
    """One TCP connection, closed at once."""
    try:
        where = parse_address(address)
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(where.host, where.port)
    except TimeoutError:
        return {"address": address, "ok": False, "error": f"no answer within {CONNECT_S:g} s"}
    except (OSError, ConfigError) as error:
        return {"address": address, "ok": False, "error": str(error)[:200]}
    writer.close()
    return {"address": address, "ok": True, "error": ""}


async def ask_peers(live: Sequence[PeerId], fetch: Ask) -> dict[str, Any]:
    """What the first peer that answers finds. Raises CommandRefused when none does."""
    reasons = []
    for peer in live[:PEERS_ASKED]:
        try:
            return {"peer": peer, "addresses": checked(await fetch(peer, RESOURCE, bytes_max=ANSWER_BYTES_MAX))}
        except (PeerError, WireError) as error:
            reasons.append(f"{peer}: {error}")
    raise CommandRefused("; ".join(reasons)[:500] or "no other site is live that could try")


def checked(data: bytes) -> list[dict[str, Any]]:
    """The answer of a peer, which may say anything. Raises WireError."""
    try:
        rows = json.loads(data)
        if not isinstance(rows, list) or len(rows) > ADDRESSES_TRIED:
            raise WireError("malformed", "the answer to reach is no short list")
        return [
            {"address": str(row["address"])[:384], "ok": row["ok"] is True, "error": str(row["error"])[:200]}
            for row in rows
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise WireError("malformed", f"the answer to reach is unreadable ({error})") from error
