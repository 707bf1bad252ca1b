"""Asks the other sites now and then for the inner losses of their phases, so that an operator sees every curve.

Nothing waits for an answer, and nothing is decided by one (protocol/09-catching-up.md, resource `losses/<phase>`, L20).
What comes is checked, counted against its sender when it is wrong, and shown only where our chain names the phase.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.observe.other_sites import placed
from dilocoxd.daemon.peers.dial_back import Ask
from dilocoxd.errors import PeerError, StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.wire.records import (
    PHASE_LOSSES_BYTES_MAX,
    PHASES_MAX,
    decode_phase_losses,
    encode_phase_losses,
)

RESOURCE: Final = "losses"
LOOK_EVERY_S: Final = 2.0
ASK_EVERY_S: Final = 10.0
"""One peer, at most so often."""
ASK_AGAIN_S: Final = 600.0
"""After no answer, or a bad one."""
EMPTY_S: Final = 60.0
"""After an answer without news."""
ASK_TIMEOUT_S: Final = 10.0
ASKED_AT_ONCE: Final = 4
PEERS_KEPT: Final = 256


def own_losses(journal: Journal, first: int) -> bytes:
    """What we answer to `losses/<first>`."""
    return encode_phase_losses(journal.own_phases.losses, first)


@dataclass(frozen=True, slots=True)
class LossSources:
    """Whom to ask, how, and who is told of what is wrong."""

    fetch: Ask
    live: Callable[[], Sequence[PeerId]]
    contributed: Callable[[PeerId], int]
    """Newest round that names the peer, as it says itself; -1: none."""
    count_bad: Callable[[PeerId, str, str], None]
    """peer, code, detail: daemon.peers.offences."""


class LossAsker:
    """Keeps the curves up to date; called on the daemon's loop."""

    def __init__(self, journal: Journal, sources: LossSources) -> None:
        self._journal = journal
        self._from = sources
        self._next: OrderedDict[PeerId, float] = OrderedDict()
        """When a peer may be asked again."""

    async def run(self) -> None:
        """Until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            await self.look(now())
            await asyncio.sleep(LOOK_EVERY_S)

    def due(self, now: float) -> list[PeerId]:
        """Live peers that say that newer entries name them than we have a loss of, and that may be asked."""
        return [
            peer
            for peer in self._from.live()
            if self._next.get(peer, now) <= now and self._from.contributed(peer) > self._newest_round(peer)
        ]

    def _newest_round(self, peer: PeerId) -> int:
        newest = self._journal.other_losses.newest(peer)
        return newest[1] if newest is not None else -1

    async def look(self, now: float) -> None:
        """Ask all that are due, a few at a time."""
        waiting = self.due(now)
        while waiting:
            some, waiting = waiting[:ASKED_AT_ONCE], waiting[ASKED_AT_ONCE:]
            async with asyncio.TaskGroup() as group:
                for peer in some:
                    group.create_task(self._ask(peer, now), name=f"losses of {peer}")

    async def _ask(self, peer: PeerId, now: float) -> None:
        first = self._journal.other_losses.next_phase(peer)
        pause = ASK_AGAIN_S
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                data = await self._from.fetch(peer, f"{RESOURCE}/{first}", bytes_max=PHASE_LOSSES_BYTES_MAX)
            items = decode_phase_losses(data, first)
            rows = self._journal.newest_rounds(len(self._journal.rounds))
            found = await asyncio.to_thread(placed, rows, peer, items)
            # Of a full answer the rest is waited for; of the last one, entries that will name its newest phases.
            self._journal.other_losses.add(peer, found, items[-1].phase + 1 if len(items) == PHASES_MAX else 0)
            pause = ASK_EVERY_S if items else EMPTY_S
        except WireError as error:
            self._from.count_bad(peer, error.code, f"{RESOURCE}/{first}: {error.detail}")
        except (PeerError, StoreError, OSError):
            pass  # it does not serve them, or cannot now: its curve stays as it is
        self._next[peer] = now + pause
        self._next.move_to_end(peer)
        while len(self._next) > PEERS_KEPT:
            self._next.popitem(last=False)
