"""Whom a simulated peer believes to be there: the real membership table, fed by heartbeats, echoes of old news, probes.

Heartbeats go out every few seconds and when the chain head moves; now and then a peer also passes on a record of
somebody else, as the DHT does, perhaps of one that is dead by now. Deadlines are read from the peer's own clock.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dilocoxd.ids import Monotonic, PeerId, RoundIndex
from dilocoxd.machines.membership.catch_up import MEET_PATIENCE_S, CatchUp
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.machines.membership.machine import Membership
from dilocoxd.machines.round import inputs as e
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.messages import PROTOCOL_MAJOR
from dilocoxd.wire.records import PeerRecord
from tests.simulation.peer.disk import RUN_ID

if TYPE_CHECKING:
    from tests.simulation.peer.node import Node

HEARTBEAT_S = 3.0
TICK_S = 1.0
PROBE_TIMEOUT_S = 5.0
AUDITED = 12
CUT_S = 0.9


def spoiled(node: Node) -> tuple[RoundIndex | None, RoundIndex] | None:
    """Rounds of the entries that may be why nothing can be trained from the state of this peer (R29)."""
    if node.swarm.is_spoiled is None:
        return None
    end = node.machine.chain.height
    entries = [stored.signed.entry for stored in node.disk.log[:end]]
    bad = [entry.round for entry in entries if node.swarm.is_spoiled(node, entry)]
    if not bad or node.is_recovering:
        return None
    return RoundIndex(bad[0]) if node.saw_sound else None, end


class Presence:
    """Membership of one process life."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.table = Membership(node.name)
        self.sequence = 0
        self.beat_at = 0.0
        self.probing: set[PeerId] = set()
        self.cut_since: dict[PeerId, Monotonic] = {}
        self.has_met = False
        for record in node.disk.records.values():
            self.table.seen(record, now=node.clock(), is_news=False)

    def record(self, state: str) -> PeerRecord:
        chain = self.node.machine.chain
        if self.node.mischief is not None:
            chain = self.node.mischief.chain(chain)
        self.sequence += 1
        return PeerRecord(
            peer=self.node.name,
            run_id=RUN_ID,
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=0,
            incarnation=self.node.disk.incarnation,
            sequence=self.sequence,
            unix_ms=int(1000 * self.node.clock()),
            ttl_ms=60_000,
            state=state,
            addresses=(),
            chain_head=chain.head,
            chain_height=chain.height,
            chain_weight=chain.weight,
            state_digest=chain.state_digest,
            contributed_round=-1,
            milli_steps_per_s=0,
            tokens_per_s=0,
            upload_bytes_per_s=0,
        )

    def say(self, state: str = "") -> None:
        """A heartbeat to everybody."""
        node = self.node
        self.beat_at = node.clock() + HEARTBEAT_S
        record = self.record(state or ("training" if node.trains else "catching_up"))
        for peer in node.swarm.nodes.values():
            if peer is not node:
                node.world.deliver(node.name, peer.name, functools.partial(_arrives, peer, node.name, record))

    def tick(self) -> None:
        """Once a second: what the driver's loop does."""
        node = self.node
        now = node.clock()
        self.table.tick(now=now)
        if node.swarm.tells_gone:
            self.table.hosts(self._hosts(now), now=now)
        for peer in self.table.to_probe(now=now):
            if peer not in self.probing:
                self.probing.add(peer)
                self._probe(node.swarm.nodes[peer])
        if now >= self.beat_at:
            self.say()
            self._pass_on()
        self.report()
        if node.is_up:
            node.later(TICK_S * node.world.rng.uniform(0.9, 1.1), self.tick)

    def on_record(self, by: PeerId, record: PeerRecord) -> None:
        self.node.disk.records[record.peer] = record
        is_own_word = by == record.peer
        became_live = self.table.seen(record, now=self.node.clock(), is_news=is_own_word)
        if became_live or record.state in ("leaving", "left"):
            self.report()

    def heard(self, peer: PeerId) -> None:
        """It answered us just now."""
        if self.table.heard(peer, now=self.node.clock()):
            self.report()

    def on_end(self, target: Node) -> None:
        """Connections to it have just ended: look whether its host refuses others (D11.4)."""
        node = self.node
        there, back = (node.world.link(*ends) for ends in self._ends(target))

        def look() -> None:
            if (
                not target.is_up
                and not there.is_cut
                and not back.is_cut
                and self.table.gone(target.name, now=node.clock())
            ):
                self.report()

        node.later(node.world.rng.uniform(0.01, 0.3), look)

    def _hosts(self, now: Monotonic) -> HostsHeard:
        """What the kernel knows (D11.5): a host that is reached answers, also for who stands still. Looked at each
        second, and not only in exchanges, so more is found, not less."""
        nodes, link = self.node.swarm.nodes, self.node.world.link
        known = [nodes[peer] for peer in self.table.known()]
        cut = {n.name for n in known if any(link(*ends).is_cut for ends in self._ends(n))}
        self.cut_since = {peer: self.cut_since.get(peer, now) for peer in cut}
        silent = {peer for peer, since in self.cut_since.items() if now - since >= CUT_S}
        return HostsHeard(frozenset(n.name for n in known if n.is_up and n.name not in cut), frozenset(silent))

    def believe_gone(self, peer: PeerId) -> None:
        """It lives, but something on the way refuses our connections."""
        self.node.swarm.refused.add(peer)
        if self.table.gone(peer, now=self.node.clock()):
            self.report()

    def live(self) -> list[PeerId]:
        """To whom the driver sends broadcasts."""
        return self.table.live(now=self.node.clock())

    def report(self) -> None:
        node = self.node
        views, bad = self.table.views(now=node.clock()), spoiled(node)
        # In every second life others were heard of before the round machine began (R19.7).
        is_old = not self.has_met and bool(views) and node.disk.incarnation % 2 == 1
        self.has_met = self.has_met or bool(views)
        node.feed(e.PeersChanged(views, is_training=node.trains and bad is None, spoiled=bad, is_old=is_old))
        self._audit()

    def _audit(self) -> None:
        """What is found of the newest entries, with those that are too old to be taken back."""
        node, proves = self.node, self.node.swarm.proves
        for stored in node.disk.log[-AUDITED:] if proves is not None else ():
            entry = stored.signed.entry
            if proves is not None and node.is_up and (owners := proves(node, entry)) is not None:
                node.feed(e.EntryFalse(entry.round, entry_hash(entry), owners))

    def _pass_on(self) -> None:
        rng, nodes = self.node.world.rng, self.node.swarm.nodes
        known = self.table.known()
        if len(known) < 2 or rng.random() < 0.7:
            return
        record = self.table.record(rng.choice(known))
        target = nodes[rng.choice(known)]
        if record is not None and record.peer != target.name:
            self.node.world.deliver(
                self.node.name, target.name, functools.partial(_arrives, target, self.node.name, record)
            )

    def _ends(self, target: Node) -> tuple[tuple[PeerId, PeerId], tuple[PeerId, PeerId]]:
        return (self.node.name, target.name), (target.name, self.node.name)

    def _probe(self, target: Node) -> None:
        node = self.node

        def is_reachable() -> bool:
            there, back = (node.world.link(*ends) for ends in self._ends(target))
            return target.is_up and not target.is_paused and not there.is_cut and not back.is_cut

        def finish() -> None:
            self.probing.discard(target.name)
            self.table.reached(target.name, is_reachable())
            if is_reachable():
                self.heard(target.name)

        is_quick = is_reachable() or not target.is_up
        node.later(node.world.rng.uniform(0.02, 0.6) if is_quick else PROBE_TIMEOUT_S, finish)


class Joining:
    """When a started peer begins to train, as in daemon/starting.py: met somebody, and stands where the swarm
    stood then.

    A new peer never begins a run of its own, except the founder, who knows nobody.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.since = node.world.now
        self.state = CatchUp(is_founder=node.is_founder)
        self.is_over = False

    def look(self) -> bool:
        node = self.node
        heights = {view.peer: int(view.height) for view in node.presence.table.views(now=node.clock()) if view.is_live}
        is_met = bool(heights) or (node.is_founder and not node.disk.records)
        is_patient = node.machine.chain.height > 0 or node.is_founder
        if not is_met and not (is_patient and node.world.now - self.since > MEET_PATIENCE_S):
            return False
        unconfirmed = node.machine.status.unconfirmed
        self.is_over = self.state.may_begin(node.machine.chain.height, heights, unconfirmed, node.world.now)
        return self.is_over


def _arrives(peer: Node, by: PeerId, record: PeerRecord) -> None:
    if peer.is_up:
        peer.guarded(lambda: peer.presence.on_record(by, record))()
