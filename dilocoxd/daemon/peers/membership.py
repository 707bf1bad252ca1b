"""Keeps the round machine informed about who is there. Records come from swarm.gossip; rounds/membership.py decides.

Moves facts only: new records and contacts in, one view of all peers out, about once a second and at every change.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from dilocoxd.daemon.state import Journal
from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.rounds.events import PeersChanged, PeerView
from dilocoxd.rounds.membership import Membership
from dilocoxd.swarm.service import Swarm
from dilocoxd.telemetry.catalogue import PeerFound, PeerLeft, PeerLost
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.records import PeerRecord

TICK_S: Final = 1.0


class MembershipDriver:
    """The loop around the table."""

    def __init__(
        self,
        table: Membership,
        swarm: Swarm,
        events: EventLog,
        tell: Callable[[PeersChanged], None],
        is_training: Callable[[], bool],
        journal: Journal,
    ) -> None:
        self._journal = journal
        self._table = table
        self._swarm = swarm
        self._events = events
        self._tell = tell
        self._is_training = is_training
        self._live_before: frozenset[PeerId] = frozenset()
        self._probing: set[PeerId] = set()

    def now(self) -> Monotonic:
        """Clock of deadlines."""
        return Monotonic(asyncio.get_running_loop().time())

    def on_record(self, record: PeerRecord, is_fresh: bool) -> None:
        """A newer verified record of a peer."""
        is_new = self._table.record(record.peer) is None
        became_live = self._table.seen(record, now=self.now(), is_news=is_fresh)
        if is_new:
            self._events.emit(PeerFound(peer=record.peer, addresses=record.addresses))
        if became_live or record.state in ("leaving", "left"):
            self.report()

    def on_contact(self, peer: PeerId) -> None:
        """The peer answered us just now."""
        self._table.heard(peer, now=self.now())

    def live(self) -> list[PeerId]:
        """Peers that answer now."""
        return self._table.live(now=self.now())

    def views(self) -> tuple[PeerView, ...]:
        """What the round machine is told."""
        return self._table.views(now=self.now())

    def as_json(self, last_contributors: frozenset[PeerId]) -> list[dict[str, Any]]:
        """GET /v1/peers."""
        now = self.now()
        found = []
        for peer in self._table.known():
            record = self._table.record(peer)
            if record is not None:
                news = {
                    "is_live": self._table.is_live(peer, now=now),
                    "took_part_last_round": peer in last_contributors,
                    "membership": self._table.state(peer, now=now),
                    "last_seen_s": round(self._table.silence(peer, now), 3),
                    "link_bytes_per_s": self._swarm.bulk_out.bytes_per_s.get(peer),
                }
                found.append({**_as_json(record), **news})
        return found

    def report(self) -> None:
        """Tell the round machine who is there."""
        speeds = self._swarm.bulk_out.bytes_per_s.values()
        self._tell(PeersChanged(self.views(), self._is_training(), round(min(speeds, default=0.0))))

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._table.tick(now=self.now())
                for peer in self._table.to_probe(now=self.now()):
                    if peer not in self._probing:
                        self._probing.add(peer)
                        group.create_task(self._probe(peer), name=f"probe {peer}")
                self._notice_losses(frozenset(self.live()))
                self._look()
                self.report()
                await asyncio.sleep(TICK_S)

    def _look(self) -> None:
        unix, now = self._journal.now(), self.now()
        for peer in self._table.known():
            record = self._table.record(peer)
            if record is not None:
                is_there = self._table.is_live(peer, now=now) or record.state in ("leaving", "left")
                self._journal.others.look(peer, record.state if is_there else "silent", unix)

    async def _probe(self, peer: PeerId) -> None:
        try:
            self._table.reached(peer, await self._swarm.probe(peer))
        finally:
            self._probing.discard(peer)

    def _notice_losses(self, live: frozenset[PeerId]) -> None:
        for peer in self._live_before - live:
            record = self._table.record(peer)
            if record is not None and record.state in ("leaving", "left"):
                self._events.emit(PeerLeft(peer=peer, reason=record.state))
            else:
                reason = self._swarm.channel.last_error(peer) or self._swarm.contacts.last_error(peer) or "silent"
                self._events.emit(
                    PeerLost(peer=peer, reason=reason[:300], silent_s=self._table.silence(peer, self.now()))
                )
        self._live_before = live


def _as_json(record: PeerRecord) -> dict[str, Any]:
    return {
        "peer_id": record.peer,
        "addresses": list(record.addresses),
        "is_known": True,
        "state": record.state,
        "height": record.chain_height,
        "chain_head": record.chain_head.hex(),
        "state_digest": record.state_digest.hex(),
        "step_seconds": 1.0 / record.steps_per_s if record.steps_per_s > 0 else None,
        "bandwidth_bytes_per_s": record.upload_bytes_per_s,
        "incarnation": record.incarnation,
    }
