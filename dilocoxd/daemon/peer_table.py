"""Decides who is known and who is live, from signed records and the time their news came. No I/O, no clock.

A peer is live while newer records of it keep arriving; the clocks of others do not matter, only ours. When we were
stopped ourselves (overloaded, suspended), nobody else is blamed for our silence.
"""

from dataclasses import dataclass
from typing import Any, Final

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.rounds.events import PeerView
from dilocoxd.wire.records import PeerRecord

LIVE_S: Final = 12.0
"""Silence after which nobody waits for a peer any more: four heartbeats."""
UNREACHABLE_LIVE_S: Final = 4.5
"""The same when it does not answer our probe either."""
LAG_S: Final = 3.0
"""A tick that comes later than this says that we ourselves were not running."""
GONE: Final = ("left", "leaving")


@dataclass(slots=True)
class _Peer:
    record: PeerRecord
    heard_at: Monotonic | None
    """When a newer record came last; None = only remembered from disk or DHT."""
    is_unreachable: bool = False


class PeerTable:
    """Other peers of this run."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._peers: dict[PeerId, _Peer] = {}
        self._ticked_at: Monotonic | None = None

    def seen(self, record: PeerRecord, *, now: Monotonic, is_news: bool) -> bool:
        """A verified record that is newer than the one before. True when the peer was not live until now.

        `is_news` False: it comes from disk or the DHT and says nothing about the present.
        """
        if record.peer == self._me:
            return False
        was_live = self.is_live(record.peer, now=now)
        before = self._peers.get(record.peer)
        heard_at = now if is_news else before.heard_at if before is not None else None
        self._peers[record.peer] = _Peer(record, heard_at)
        return not was_live and self.is_live(record.peer, now=now)

    def heard(self, peer: PeerId, *, now: Monotonic) -> None:
        """The peer itself gave a sign of life."""
        if peer in self._peers:
            self._peers[peer].heard_at = now
            self._peers[peer].is_unreachable = False

    def silent(self, seconds: float, *, now: Monotonic) -> list[PeerId]:
        """Live peers without news for so long."""
        return [peer for peer in self.live(now=now) if self.silence(peer, now) > seconds]

    def silence(self, peer: PeerId, now: Monotonic) -> float:
        """Seconds since the last sign of life; 0 if there was none yet."""
        known = self._peers.get(peer)
        return now - known.heard_at if known is not None and known.heard_at is not None else 0.0

    def reached(self, peer: PeerId, is_reachable: bool) -> None:
        """Whether messages to the peer get through."""
        if peer in self._peers:
            self._peers[peer].is_unreachable = not is_reachable

    def tick(self, *, now: Monotonic) -> None:
        """To be called about every second: notices when we were not running, and forgives everybody that time."""
        if self._ticked_at is not None and now - self._ticked_at > LAG_S:
            lag = now - self._ticked_at
            for peer in self._peers.values():
                if peer.heard_at is not None:
                    peer.heard_at = Monotonic(peer.heard_at + lag)
        self._ticked_at = now

    def is_live(self, peer: PeerId, *, now: Monotonic) -> bool:
        """Whether anybody should wait for it."""
        known = self._peers.get(peer)
        if known is None or known.heard_at is None or known.record.state in GONE:
            return False
        return now - known.heard_at < (UNREACHABLE_LIVE_S if known.is_unreachable else LIVE_S)

    def known(self) -> list[PeerId]:
        """Everybody but ourselves."""
        return list(self._peers)

    def live(self, *, now: Monotonic) -> list[PeerId]:
        """Those that answer now."""
        return [peer for peer in self._peers if self.is_live(peer, now=now)]

    def record(self, peer: PeerId) -> PeerRecord | None:
        """Newest record of a peer."""
        known = self._peers.get(peer)
        return known.record if known is not None else None

    def views(self, *, now: Monotonic) -> tuple[PeerView, ...]:
        """What the round machine is told."""
        return tuple(
            PeerView(
                peer=peer,
                is_live=self.is_live(peer, now=now),
                is_training=known.record.state == "training",
                height=RoundIndex(known.record.chain_height),
                head=Digest(known.record.chain_head),
                step_seconds=1.0 / known.record.steps_per_s if known.record.steps_per_s > 0 else None,
            )
            for peer, known in self._peers.items()
        )

    def as_json(self, *, now: Monotonic, last_contributors: frozenset[PeerId]) -> list[dict[str, Any]]:
        """Objects of GET /v1/peers."""
        return [
            {
                "peer_id": peer,
                "addresses": list(known.record.addresses),
                "is_known": True,
                "is_live": self.is_live(peer, now=now),
                "took_part_last_round": peer in last_contributors,
                "state": known.record.state,
                "height": known.record.chain_height,
                "chain_head": known.record.chain_head.hex(),
                "state_digest": known.record.state_digest.hex(),
                "last_seen_s": None if known.heard_at is None else round(now - known.heard_at, 3),
                "step_seconds": 1.0 / known.record.steps_per_s if known.record.steps_per_s > 0 else None,
                "bandwidth_bytes_per_s": known.record.upload_bytes_per_s,
                "incarnation": known.record.incarnation,
            }
            for peer, known in self._peers.items()
        ]
