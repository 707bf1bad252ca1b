"""Decides who is known, alive, suspect, dead or left, from signed records and the time their news came. Pure.

A peer is alive while newer records of it keep arriving; the clocks of others do not matter, only ours. Silence makes it
suspect (it is probed, and still waited for), then dead; a probe that fails shortens that. A newer record from the peer
itself refutes suspicion and death; after `left`, only a record of a later process life (incarnation) or one that says
otherwise does. Time-outs grow with our own bad health: when we were not running, or when everybody falls silent at
once, the fault is probably ours. Source: docs/internals.md section 3; the last rule after Lifeguard (arXiv 1707.00788).
"""

from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.rounds.events import PeerView
from dilocoxd.wire.records import PeerRecord

SUSPECT_S: Final = 4.0
"""Silence after which a peer is asked whether it is there."""
LIVE_S: Final = 12.0
"""Silence after which nobody waits for a peer any more: four heartbeats."""
UNREACHABLE_LIVE_S: Final = 4.5
"""The same when it does not answer our probe either."""
LAG_S: Final = 3.0
"""A tick that comes later than this says that we ourselves were not running."""
HEALTH_MAX: Final = 4
"""Worst own health; every point makes silence last half as long again."""
HEALTH_STEP_S: Final = 10.0
"""One point is forgotten after this long without trouble."""
GONE: Final = ("left", "leaving")

UNKNOWN: Final = "unknown"
ALIVE: Final = "alive"
SUSPECT: Final = "suspect"
DEAD: Final = "dead"
LEFT: Final = "left"


@dataclass(slots=True)
class _Peer:
    record: PeerRecord
    heard_at: Monotonic | None
    """When a newer record came last; None = only remembered from disk or DHT."""
    is_unreachable: bool = False


class Membership:
    """Other peers of this run."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._peers: dict[PeerId, _Peer] = {}
        self._ticked_at: Monotonic | None = None
        self._health = 0
        self._trouble_at = Monotonic(0.0)

    # --- facts

    def seen(self, record: PeerRecord, *, now: Monotonic, is_news: bool) -> bool:
        """A verified record. True when the peer was not live until now. Older ones than we know change nothing.

        `is_news` False: it comes from disk or the DHT and says nothing about the present.
        """
        before = self._peers.get(record.peer)
        if record.peer == self._me:
            return False
        is_old = before is not None and record.order <= before.record.order
        if is_old and (before is None or before.heard_at is not None or record.order < before.record.order):
            return False  # an echo of what we know, perhaps of a peer that is dead by now
        was_live = self.is_live(record.peer, now=now)
        heard_at = now if is_news else before.heard_at if before is not None else None
        self._peers[record.peer] = _Peer(record, heard_at)
        return not was_live and self.is_live(record.peer, now=now)

    def heard(self, peer: PeerId, *, now: Monotonic) -> None:
        """The peer itself gave a sign of life."""
        if peer in self._peers:
            self._peers[peer].heard_at = now
            self._peers[peer].is_unreachable = False

    def reached(self, peer: PeerId, is_reachable: bool) -> None:
        """Answer to a probe: whether messages to the peer get through."""
        if peer in self._peers:
            self._peers[peer].is_unreachable = not is_reachable

    def tick(self, *, now: Monotonic) -> None:
        """To be called about every second: notices when we were not running, and forgives everybody that time."""
        lag = now - self._ticked_at if self._ticked_at is not None else 0.0
        self._ticked_at = now
        if lag > LAG_S:
            for peer in self._peers.values():
                if peer.heard_at is not None:
                    peer.heard_at = Monotonic(peer.heard_at + lag)
        live = self.live(now=now)
        if lag > LAG_S or (len(live) > 1 and all(self.silence(peer, now) > SUSPECT_S for peer in live)):
            if now - self._trouble_at >= SUSPECT_S:
                self._health = min(HEALTH_MAX, self._health + 1)
            self._trouble_at = now
        elif self._health and now - self._trouble_at > HEALTH_STEP_S:
            self._health -= 1
            self._trouble_at = now

    # --- decisions

    @property
    def patience(self) -> float:
        """Factor on all time-outs; 1 when we are well."""
        return 1.0 + self._health / 2

    def state(self, peer: PeerId, *, now: Monotonic) -> str:
        """UNKNOWN, ALIVE, SUSPECT, DEAD or LEFT."""
        known = self._peers.get(peer)
        if known is None:
            return UNKNOWN
        if known.record.state in GONE:
            return LEFT
        if known.heard_at is None:
            return DEAD
        silence = now - known.heard_at
        if silence >= (UNREACHABLE_LIVE_S if known.is_unreachable else LIVE_S) * self.patience:
            return DEAD
        return SUSPECT if silence > SUSPECT_S * self.patience else ALIVE

    def is_live(self, peer: PeerId, *, now: Monotonic) -> bool:
        """Whether anybody should wait for it."""
        return self.state(peer, now=now) in (ALIVE, SUSPECT)

    def to_probe(self, *, now: Monotonic) -> list[PeerId]:
        """Suspects: ask each whether it is there, and report `reached`."""
        return [peer for peer in self._peers if self.state(peer, now=now) == SUSPECT]

    def silence(self, peer: PeerId, now: Monotonic) -> float:
        """Seconds since the last sign of life; 0 if there was none yet."""
        known = self._peers.get(peer)
        return now - known.heard_at if known is not None and known.heard_at is not None else 0.0

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
