"""Says that it is far ahead, and shows a branch of its own making, an entry an answer, without end (R22).

While `stops-lying` is in the working directory it is as honest as others.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from dilocoxd.daemon.peers.heartbeat import Heartbeat
from dilocoxd.daemon.peers.serving import Library, serve_bytes
from dilocoxd.daemon.round.driver import RoundDriver
from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.swarm.interface import SelfDescription
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.wire.entry import SignedEntry, encode_entry, entry_hash
from dilocoxd.wire.messages import Committed, Ready

SWITCH = "stops-lying"
HEIGHT = RoundIndex(1_000_000)
HEAD = Digest(b"\1" * 32)
LATE_S = 0.5
"""Before each answer: nobody can call that slow."""


class Endless:
    """From entry 0 on, each entry on a state that never was; nobody looks before the last one is there."""

    def __init__(self, first: SignedEntry) -> None:
        self._entries = [replace(first, entry=replace(first.entry, state_digest=HEAD))]

    def at(self, index: int) -> bytes:
        """One entry, as in an answer."""
        while len(self._entries) <= index:
            below = self._entries[-1]
            voters = tuple(contribution.peer for contribution in below.entry.contributions)
            above = replace(
                below.entry,
                round=RoundIndex(len(self._entries)),
                parent=entry_hash(below.entry),
                parent_voters=voters,
            )
            self._entries.append(replace(below, entry=above))
        data = encode_entry(self._entries[index])
        return len(data).to_bytes(4, "little") + data


def apply() -> None:
    """What it says of itself, and its chain; all else it does as others do."""
    switch = Path(SWITCH).absolute()
    say, describe, serve = RoundDriver.broadcast, Heartbeat.describe, Library.open
    branch: list[Endless] = []

    def broadcast(self: RoundDriver, message: Any) -> None:
        is_lie = isinstance(message, Ready) and message.round > 0 and not switch.exists()
        say(self, Committed(RoundIndex(HEIGHT - 1), HEAD) if is_lie else message)

    def lying(self: Heartbeat) -> SelfDescription:
        told = describe(self)
        if not told.chain_height or switch.exists():
            return told
        return replace(told, chain_height=HEIGHT, chain_head=HEAD)

    async def opened(self: Library, peer: PeerId, resource: str) -> Served:
        kind, _, number = resource.partition("/")
        if kind != "chain" or not number.isdecimal() or not self._log.height or switch.exists():
            return await serve(self, peer, resource)
        await asyncio.sleep(LATE_S)
        if not branch:
            branch.append(Endless(self._log.entry(0)))
        return serve_bytes(branch[0].at(int(number)))

    RoundDriver.broadcast = broadcast  # type: ignore[method-assign]
    Heartbeat.describe = lying  # type: ignore[method-assign]
    Library.open = opened  # type: ignore[method-assign]
