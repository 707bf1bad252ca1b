"""Keeps the round machine informed about who is there. machines/membership/machine.py decides.

Records come from swarm/discovery/gossip.py.

Moves facts only: new records and contacts in, one view of all peers out, about once a second and at every change.
"""

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from dilocoxd.answers.peers import Peer, PeerNode
from dilocoxd.daemon.chain.probation import probation_of
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.observe.names import SiteNames
from dilocoxd.ids import Monotonic, PeerId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.machines.membership.machine import DEAD, GONE, Membership
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.machines.round.inputs import PeersChanged
from dilocoxd.swarm.direct.routes import OtherNode
from dilocoxd.swarm.service import Swarm
from dilocoxd.telemetry.catalogue import PeerEvicted, PeerFound, PeerLeft, PeerLost
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.records import PeerRecord

TICK_S: Final = 1.0
UNANSWERED: Final = "its host acknowledges nothing"
REFUSED: Final = "its host refuses connections"


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """What is kept of the others for people."""

    journal: Journal
    names: SiteNames


@dataclass(frozen=True, slots=True)
class OwnTraining:
    """What the round machine is told of our own site."""

    is_on: Callable[[], bool]
    spoiled_by: Callable[[], tuple[RoundIndex | None, RoundIndex] | None]
    """Rounds [first, end) of the entries of which one has spoiled our state (SiteStatus)."""


class MembershipDriver:
    """The loop around the table."""

    def __init__(
        self,
        table: Membership,
        swarm: Swarm,
        events: EventLog,
        tell: Callable[[PeersChanged], None],
        own: OwnTraining,
        memory: PeerMemory,
    ) -> None:
        self._journal, self._names = memory.journal, memory.names
        self._table = table
        self._swarm = swarm
        self._events = events
        self._tell = tell
        self._own = own
        self._live_before: frozenset[PeerId] = frozenset()
        self._probing: set[PeerId] = set()

    def now(self) -> Monotonic:
        """Clock of deadlines."""
        return Monotonic(asyncio.get_running_loop().time())

    def on_record(self, record: PeerRecord, is_own_word: bool) -> None:
        """A newer verified record of a peer."""
        self._names.learn(record.peer, record.name)
        is_first, known = self._table.silence(record.peer, self.now()) is None, self._table.record(record.peer)
        is_goodbye = record.state in GONE and known is not None and known.state not in GONE
        became_live = self._table.seen(record, now=self.now(), is_news=is_own_word)
        if became_live and is_first:
            self._events.emit(PeerFound(peer=record.peer, addresses=record.addresses))
        if became_live or record.state in GONE:
            self.report()
        if is_goodbye and not is_first and record.peer not in self._live_before:
            # Of who was live when we last looked, the next look tells it.
            self._events.emit(PeerLeft(peer=record.peer, reason=record.state))

    def on_contact(self, peer: PeerId) -> None:
        """The peer answered us just now."""
        record, is_first = self._table.record(peer), self._table.silence(peer, self.now()) is None
        if not self._table.heard(peer, now=self.now()):
            return
        if record is not None and is_first:
            self._events.emit(PeerFound(peer=peer, addresses=record.addresses))
        self.report()

    def on_gone(self, peer: PeerId) -> None:
        """Its host says that nobody is there."""
        if self._table.gone(peer, now=self.now()):
            self._notice_losses(frozenset(self.live()), {peer: REFUSED})
            self.report()

    def on_hosts(self, heard: HostsHeard) -> None:
        """Which hosts answer, by the word of our kernel."""
        if self._table.hosts(heard, now=self.now()):
            self._notice_losses(frozenset(self.live()), dict.fromkeys(heard.silent, UNANSWERED))
            self.report()

    def on_moved(self, peers: frozenset[PeerId]) -> None:
        """Bytes of theirs came a moment ago."""
        for peer in peers:
            self._table.moved(peer, now=self.now())

    def on_evicted(self, peer: PeerId) -> None:
        """The peer is no member any more: nobody waits for it."""
        self._table.forget(peer)
        self._events.emit(PeerEvicted(peer=peer))
        self.report()

    def known(self) -> list[PeerId]:
        """Peers that were ever heard of, in earlier lives too."""
        return self._table.known()

    def live(self) -> list[PeerId]:
        """Peers that answer now."""
        return self._table.live(now=self.now())

    def views(self) -> tuple[PeerView, ...]:
        """What the round machine is told."""
        return self._table.views(now=self.now())

    def heights(self) -> list[int]:
        """Where the live peers stand, as far as they said."""
        return [int(view.height) for view in self.views() if view.is_live]

    def shown(self, chain: ChainView) -> list[Peer]:
        """GET /v1/peers, seen from our own chain."""
        last = chain.recent[-1] if chain.recent else frozenset()
        records = (self._table.record(peer) for peer in self._table.known())
        return [self._shown(record, chain, last) for record in records if record is not None]

    def _shown(self, record: PeerRecord, chain: ChainView, last_contributors: Set[PeerId]) -> Peer:
        peer, now = record.peer, self.now()
        membership, silence_s = self._table.state(peer, now=now), self._table.silence(peer, now)
        ways, told = self._swarm.payloads_to(peer), self._journal.other_losses.newest(peer)
        return Peer(
            peer_id=peer,
            name=self._names.of(peer),
            addresses=record.addresses,
            is_known=True,
            is_live=self._table.is_live(peer, now=now),
            took_part_last_round=peer in last_contributors,
            membership=membership,
            state="dead" if membership == DEAD else record.state,
            height=record.chain_height,
            rounds_behind=chain.height - record.chain_height,
            chain_head=record.chain_head.hex(),
            state_digest=record.state_digest.hex(),
            last_seen_s=None if silence_s is None else round(silence_s, 3),
            step_seconds=1.0 / record.steps_per_s if record.steps_per_s > 0 else None,
            tokens_per_s=record.tokens_per_s or None,
            inner_loss=told[2] if told is not None else None,
            contributed_round=record.contributed_round if record.contributed_round >= 0 else None,
            bandwidth_bytes_per_s=record.upload_bytes_per_s,
            link_bytes_per_s=self._swarm.bulk_out.bytes_per_s.get(peer),
            has_data=ways.is_data,
            no_data_reason=ways.reason,
            data_parts=ways.parts,
            nodes=tuple(_shown_node(each) for each in ways.nodes),
            incarnation=record.incarnation,
            way=self._way(peer),
            probation=probation_of(chain, peer),
        )

    def _way(self, peer: PeerId) -> Literal["direct", "relay", ""]:
        contacts = self._swarm.contacts
        if peer not in contacts.connected:
            return ""
        return "relay" if peer in contacts.relayed else "direct"

    def report(self, *, is_old: bool = False) -> None:
        """Tell the round machine who is there. `is_old`: it begins now, and we knew that before."""
        speeds = self._swarm.bulk_out.bytes_per_s.values()
        views, speed = self.views(), round(min(speeds, default=0.0))
        self._tell(PeersChanged(views, self._own.is_on(), speed, self._own.spoiled_by(), is_old))

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._table.tick(now=self.now())
                for peer in self._table.to_probe(now=self.now()):
                    if peer not in self._probing:
                        self._probing.add(peer)
                        group.create_task(self._probe(peer), name=f"probe {peer}")
                self._notice_losses(frozenset(self.live()), {})
                self._look()
                self.report()
                await asyncio.sleep(TICK_S)

    def _look(self) -> None:
        unix, now = self._journal.now(), self.now()
        for peer in self._table.known():
            record = self._table.record(peer)
            if record is not None:
                is_there = self._table.is_live(peer, now=now) or record.state in GONE
                self._journal.others.look(peer, record.state if is_there else "silent", unix)

    async def _probe(self, peer: PeerId) -> None:
        try:
            self._table.reached(peer, await self._swarm.probe(peer))
        finally:
            self._probing.discard(peer)

    def _notice_losses(self, live: frozenset[PeerId], reasons: Mapping[PeerId, str]) -> None:
        for peer in self._live_before - live:
            record = self._table.record(peer)
            if record is not None and record.state in GONE:
                self._events.emit(PeerLeft(peer=peer, reason=record.state))
            else:
                reason = (
                    reasons.get(peer)
                    or self._swarm.channel.last_error(peer)
                    or self._swarm.contacts.last_error(peer)
                    or "silent"
                )
                self._events.emit(
                    PeerLost(peer=peer, reason=reason[:300], silent_s=self._table.silence(peer, self.now()) or 0.0)
                )
        self._live_before = live


def _shown_node(node: OtherNode) -> PeerNode:
    return PeerNode(
        addresses=node.addresses,
        first_segment=node.first,
        stop_segment=node.stop,
        is_reached=node.is_reached,
        reason=node.reason,
    )
