"""Decides who is known, alive, suspect, dead or left, from signed records and the time their news came. Pure.

A peer is alive while it gives signs of life itself, on a connection that proves who it is: newer records of its own,
answers to our hello. It stays so while bytes of it come by data connections of its own. What others bring of it,
however new, only says where it may be asked, for anybody can make keys and sign with them. The clocks of others do not
matter, only ours. Silence makes it suspect (it is probed, and still waited for), then dead; a probe that fails shortens
that. Where its host itself says that nobody is there, it is dead at once; where its host acknowledges nothing while
those of most others do, within about a second. A newer record from the peer itself refutes suspicion and death; after
`left`, only a record of a later process life (incarnation) or one that says otherwise does. Time-outs grow with our own
bad health: when we were not running, or when everybody falls silent at once, the fault is probably ours.
Source: protocol/05-discovery.md, D11; the last rule after Lifeguard (arXiv 1707.00788).
"""

import math
from dataclasses import dataclass
from typing import Final

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.machines.peers.view import PeerView
from dilocoxd.wire.records import PeerRecord

SUSPECT_S: Final = 4.0
"""Silence after which a peer is asked whether it is there."""
LIVE_S: Final = 12.0
"""Silence after which nobody waits for a peer any more: four heartbeats."""
UNREACHABLE_LIVE_S: Final = 4.5
"""The same when it does not answer our probe either."""
TICK_LATE_S: Final = 3.0
"""A tick that comes later than this says that we ourselves were not running."""
HEALTH_MAX: Final = 4
"""Worst own health; every point makes silence last half as long again."""
HEALTH_STEP_S: Final = 10.0
"""One point is forgotten after this long without trouble."""
PEERS_MAX: Final = 1024
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
    """When it gave a sign of life itself last; None = known by hearsay only, from others, disk or DHT."""
    is_unreachable: bool = False
    is_gone: bool = False
    """Its host has refused a connection since then."""
    is_cut: bool = False
    """Its host acknowledges nothing, and we hear most of the others."""
    view: PeerView | None = None
    """What `seen_as` answered last; of this record."""

    def seen_as(self, *, is_live: bool) -> PeerView:
        """What the round machine is told of it."""
        if self.view is None or self.view.is_live != is_live:
            record = self.record
            self.view = PeerView(
                peer=record.peer,
                is_live=is_live,
                is_training=record.state == "training",
                height=RoundIndex(record.chain_height),
                head=Digest(record.chain_head),
                step_seconds=1.0 / record.steps_per_s if record.steps_per_s > 0 else None,
            )
        return self.view


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

        `is_news` False: somebody else brought it, or disk or DHT: it says nothing about the present. Of more than
        PEERS_MAX peers the least useful is forgotten: by hearsay only, else silent for longest; never a live one.
        """
        before = self._peers.get(record.peer)
        if record.peer == self._me:
            return False
        is_old = before is not None and record.order <= before.record.order
        if is_old and (before is None or before.heard_at is not None or record.order < before.record.order):
            return False  # an echo of what we know, perhaps of a peer that is dead by now
        was_live = self.is_live(record.peer, now=now)
        heard_at = now if is_news else before.heard_at if before is not None else None
        if before is None and len(self._peers) >= PEERS_MAX and not self._make_room(now):
            return False
        new = self._peers[record.peer] = _Peer(record, heard_at)
        if before is not None and not is_news:
            new.is_gone, new.is_cut = before.is_gone, before.is_cut
        return not was_live and self.is_live(record.peer, now=now)

    def _make_room(self, now: Monotonic) -> bool:
        def silence(peer: PeerId) -> float:
            heard_at = self._peers[peer].heard_at
            return now - heard_at if heard_at is not None else math.inf

        least = max(self._peers, key=silence)
        if self.is_live(least, now=now):
            return False
        del self._peers[least]
        return True

    def heard(self, peer: PeerId, *, now: Monotonic) -> bool:
        """The peer itself gave a sign of life; True when it was not live until now."""
        if peer not in self._peers:
            return False
        was_live = self.is_live(peer, now=now)
        self._peers[peer].heard_at = now
        known = self._peers[peer]
        known.is_unreachable = known.is_gone = known.is_cut = False
        return not was_live and self.is_live(peer, now=now)

    def moved(self, peer: PeerId, *, now: Monotonic) -> None:
        """Bytes of it came by a data connection of its own: live as long as they come, if it is live.

        They make nobody live: what a peer has sent may arrive once it has died, left, or was given up.
        """
        if self.is_live(peer, now=now):
            self.heard(peer, now=now)

    def reached(self, peer: PeerId, is_reachable: bool) -> None:
        """Answer to a probe: whether messages to the peer get through."""
        if peer in self._peers:
            self._peers[peer].is_unreachable = not is_reachable

    def gone(self, peer: PeerId, *, now: Monotonic) -> bool:
        """Its connections have ended, and its host refuses others (D11.4); True when it was live until now.

        That is an answer, unlike silence: no patience is needed, however slow the link or busy the machines are.
        """
        was_live = self.is_live(peer, now=now)
        if peer in self._peers:
            self._peers[peer].is_gone = True
        return was_live

    def hosts(self, heard: HostsHeard, *, now: Monotonic) -> bool:
        """Which hosts answer (D11.5); True when that changes who is live.

        Only with more than half of all on our side, ourselves included: else the fault may be ours, and of two halves
        that lost each other for a second both would go on alone.
        """
        before = self.live(now=now)
        for peer in heard.answering & self._peers.keys():
            self._peers[peer].is_cut = False
        expected = [peer for peer, known in self._peers.items() if self._is_heard(known, now)]
        answering = sum(peer in heard.answering for peer in expected)
        for peer in heard.silent.intersection(expected) if self._are_most(answering, len(expected)) else ():
            self._peers[peer].is_cut = True
        return before != self.live(now=now)

    @staticmethod
    def _are_most(answering: int, expected: int) -> bool:
        return 2 * (1 + answering) > 1 + expected

    def _is_heard(self, known: _Peer, now: Monotonic) -> bool:
        """Live, but for what its host's silence says."""
        return self._state(known, now) in (ALIVE, SUSPECT)

    def forget(self, peer: PeerId) -> None:
        """It is no member any more: what is said of it does not count."""
        self._peers.pop(peer, None)

    def tick(self, *, now: Monotonic) -> None:
        """To be called about every second: notices when we were not running, and forgives everybody that time."""
        lag = now - self._ticked_at if self._ticked_at is not None else 0.0
        self._ticked_at = now
        if lag > TICK_LATE_S:
            for peer in self._peers.values():
                if peer.heard_at is not None:
                    peer.heard_at = Monotonic(peer.heard_at + lag)
        live = self.live(now=now)
        if lag > TICK_LATE_S or (len(live) > 1 and all(self._is_silent(peer, now) for peer in live)):
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
        state = self._state(known, now)
        return DEAD if known.is_cut and state in (ALIVE, SUSPECT) else state

    def _state(self, known: _Peer, now: Monotonic) -> str:
        if known.record.state in GONE:
            return LEFT
        if known.heard_at is None or known.is_gone:
            return DEAD
        silence, patience = now - known.heard_at, self.patience
        if silence >= (UNREACHABLE_LIVE_S if known.is_unreachable else LIVE_S) * patience:
            return DEAD
        return SUSPECT if silence > SUSPECT_S * patience else ALIVE

    def is_live(self, peer: PeerId, *, now: Monotonic) -> bool:
        """Whether anybody should wait for it."""
        return self.state(peer, now=now) in (ALIVE, SUSPECT)

    def to_probe(self, *, now: Monotonic) -> list[PeerId]:
        """Suspects: ask each whether it is there, and report `reached`."""
        return [peer for peer in self._peers if self.state(peer, now=now) == SUSPECT]

    def silence(self, peer: PeerId, now: Monotonic) -> float | None:
        """Seconds since the last sign of life; None if there was none yet."""
        known = self._peers.get(peer)
        return now - known.heard_at if known is not None and known.heard_at is not None else None

    def _is_silent(self, peer: PeerId, now: Monotonic) -> bool:
        return (self.silence(peer, now) or 0.0) > SUSPECT_S

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
        """What the round machine is told: nothing of whom others only talk of."""
        heard = [peer for peer, known in self._peers.items() if known.heard_at is not None]
        return tuple([self._peers[peer].seen_as(is_live=self.is_live(peer, now=now)) for peer in heard])
