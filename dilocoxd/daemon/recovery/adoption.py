"""Where the operator wants this site to be: a chain head that it takes, and then never leaves by itself (R28).

The word is on disk before it is answered; until the chain has that head, recovery is asked for it again and again. Also
tells the operator why there is something to decide: a better branch that final entries keep us from.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.answers.peers import Peer
from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.errors import CommandRefused
from dilocoxd.ids import Digest, PeerId
from dilocoxd.machines.chain import entry_tokens
from dilocoxd.machines.recovery.finality import Place
from dilocoxd.machines.recovery.interface import FinalKept
from dilocoxd.machines.round.inputs import BranchAdopted, Event
from dilocoxd.store.admission import read_checkpoint, write_checkpoint
from dilocoxd.store.log import EntryLog
from dilocoxd.wire.entry import entry_hash

ALERT: Final = "fork_below_final"
FIRST_S: Final = 5.0
AGAIN_MAX_S: Final = 300.0
"""Asked for again after twice the time, for asking interrupts the round."""
PREFIX_MIN: Final = 8
"""Shortest beginning of a head, in hex digits."""
SHOWN: Final = 16
BRANCHES_KEPT: Final = 16


def read_adopted(path: Path) -> Place | None:
    """The last word of the operator; None: there is none. Raises ConfigError."""
    return read_checkpoint(path, "remove it, and run `dilocoxd adopt` again if alert fork_below_final stands")


@dataclass(frozen=True, slots=True)
class AdoptionParts:
    """What it works with."""

    path: Path
    log: EntryLog
    peers: Callable[[], Sequence[Peer]]
    """As GET /v1/peers shows them."""
    peer_called: Callable[[str], PeerId]
    """The one site of this name; raises CommandRefused."""
    alerts: AlertBook


class Adoption:
    """Of one site; called on its loop."""

    def __init__(self, parts: AdoptionParts) -> None:
        self._parts = parts
        self.place = read_adopted(parts.path)
        self._seen: dict[Digest, Place] = {}
        """Tips of branches that we were kept from, newest last."""
        self._asked = asyncio.Event()

    def adopt(self, target: str) -> str:
        """Be where `target` is: a chain head, its first hex digits, or a site that stands there. Raises CommandRefused,
        StoreError."""
        parts, place = self._parts, self._place_of(target)
        write_checkpoint(parts.path, *place)
        self.place = place
        height, head = place[0], place[1].hex()[:SHOWN]
        if self.is_there:
            self.settle()
            return f"our chain has head {head} at height {height} already; from now on it is final here"
        self._asked.set()
        return (
            f"this site takes the branch with head {head} at height {height} as soon as a site that has it answers, and"
            " feeds the work of its own entries beyond the fork into later rounds; follow it in `dilocoxd status`"
        )

    @property
    def is_there(self) -> bool:
        """Our chain has what the operator chose."""
        log = self._parts.log
        return self.place is not None and self.place[0] <= log.height and log.hash_at(self.place[0]) == self.place[1]

    def is_below(self, height: int) -> bool:
        """What follows our chain from `height` on follows what the operator chose: that replaces the checkpoint."""
        return self.place is not None and self.is_there and self.place[0] <= height

    def settle(self) -> None:
        """A recovery is over: there may be nothing left to decide."""
        if self.is_there:
            self._parts.alerts.clear(ALERT)

    async def run(self, tell: Callable[[Event], None]) -> None:
        """Until cancelled: ask for a recovery until our chain has what the operator chose."""
        again_s = FIRST_S
        while True:
            live = tuple(PeerId(row.peer_id) for row in self._parts.peers() if row.is_live)
            if live and self.place is not None and not self.is_there:
                tell(BranchAdopted(live))
                again_s = min(AGAIN_MAX_S, 2 * again_s)
            try:
                async with asyncio.timeout(again_s):
                    await self._asked.wait()
            except TimeoutError:
                continue
            self._asked.clear()
            again_s = FIRST_S

    def kept(self, found: FinalKept) -> None:
        """Recovery did not take a better branch, because of final entries."""
        heads = [entry_hash(signed.entry) for signed in found.branch.entries]
        self._seen[heads[-1]] = (found.branch.tip, heads[-1])
        while len(self._seen) > BRANCHES_KEPT:
            del self._seen[next(iter(self._seen))]
        log, rows = self._parts.log, [row for row in self._parts.peers() if row.is_live]
        on = {row.name: bytes.fromhex(row.chain_head) for row in rows}
        theirs = [row.name for row in rows if row.peer_id == found.peer or on[row.name] in heads]
        ours = [row.name for row in rows if row.height <= log.height and on[row.name] == log.hash_at(row.height)]
        own = (log.hash_at(log.height), log.height, sum(map(entry_tokens, found.own)), ["this site", *ours])
        text = (
            f"another branch has more tokens, but lacks {found.num_final:,} of our entries that are final (fork at"
            f" height {found.branch.fork}): {_side('ours', *own)};"
            f" {_side('the other', heads[-1], found.branch.tip, found.branch.tokens, theirs)}"
        )
        self._parts.alerts.alert(ALERT, text)

    def _place_of(self, target: str) -> Place:
        wanted = target.lower()
        known = {(row.height, Digest(bytes.fromhex(row.chain_head))) for row in self._parts.peers() if row.height > 0}
        log = self._parts.log
        own = [(log.height, log.hash_at(log.height))] if log.height else []
        # Where these are we have seen; what a peer says of the height of a head may be false.
        sure = {head: (height, head) for height, head in (*self._seen.values(), *own)}
        known = {sure.get(head, (height, head)) for height, head in known} | set(sure.values())
        found = [(height, head) for height, head in known if head.hex().startswith(wanted)]
        if len(wanted) >= PREFIX_MIN and len(found) == 1:
            return found[0]
        if len(wanted) >= PREFIX_MIN and found:
            raise CommandRefused(
                f"{len(found)} known heads or heights belong to {target!r}; give more digits, or name a site"
            )
        try:
            peer = self._parts.peer_called(target)
        except CommandRefused as refused:
            heads = ", ".join(sorted({head.hex()[:SHOWN] for _, head in known})) or "none"
            raise CommandRefused(
                f"no known chain head begins with {target!r} (known: {heads}), and {refused}"
            ) from None
        row = next(row for row in self._parts.peers() if row.peer_id == peer)
        if row.height == 0:
            raise CommandRefused(f"{row.name} has no entries, so there is no branch to adopt; name another site")
        return row.height, Digest(bytes.fromhex(row.chain_head))


def _side(whose: str, head: Digest, height: int, tokens: int, sites: list[str]) -> str:
    stands = ", ".join(sites) or "nobody live"
    return f"{whose} is {head.hex()[:SHOWN]} at height {height} with {tokens:,} tokens since the fork ({stands})"
