"""Who may talk to us, and what each peer did wrong: allow list, counters of bad input, bans. Pure bookkeeping."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId

PEERS_TRACKED_MAX: Final = 1024
STRIKES_MAX: Final = 20
"""Bad inputs within BAN_S that make us refuse all streams of a peer for BAN_S."""
BAN_S: Final = 60.0
STREAMS_PER_PEER_MAX: Final = 64
NO_STRIKE: Final = frozenset(
    {"truncated", "wrong_run", "wrong_protocol", "clock_skew", "not_ready", "not_allowed", "banned", "too_many_streams"}
)
"""Counted but not held against a peer: an honest one gets there by a crash or a wrong setting."""


@dataclass(slots=True)
class _Entry:
    counts: Counter[str] = field(default_factory=Counter)
    strikes: int = 0
    strikes_since: float = 0.0
    banned_until: float = 0.0
    streams: int = 0


class Guard:
    """Asked at the start of every incoming stream; told of every bad input."""

    def __init__(self, clock: Callable[[], float], *, allowed: frozenset[PeerId] | None = None) -> None:
        self._clock = clock
        self.allowed = allowed
        """Peer ids that may talk to us; None = everybody."""
        self._peers: OrderedDict[str, _Entry] = OrderedDict()

    def _entry(self, peer: str) -> _Entry:
        entry = self._peers.get(peer)
        if entry is None:
            entry = self._peers[peer] = _Entry()
            while len(self._peers) > PEERS_TRACKED_MAX:
                idle = next((name for name, e in self._peers.items() if e.streams == 0 and name != peer), None)
                if idle is None:
                    break
                del self._peers[idle]
        self._peers.move_to_end(peer)
        return entry

    def enter(self, peer: PeerId) -> None:
        """A stream of `peer` begins; pair with `leave`. Raises WireError(not_allowed | banned | too_many_streams)."""
        if self.allowed is not None and peer not in self.allowed:
            raise WireError("not_allowed", "peer id is not on the allow list of this site")
        entry = self._entry(peer)
        if self._clock() < entry.banned_until:
            raise WireError("banned", f"after {STRIKES_MAX} bad inputs; try again in {BAN_S:g} s")
        if entry.streams >= STREAMS_PER_PEER_MAX:
            raise WireError("too_many_streams", f"{entry.streams} open, limit {STREAMS_PER_PEER_MAX}")
        entry.streams += 1

    def leave(self, peer: PeerId) -> None:
        self._entry(peer).streams -= 1

    def count(self, peer: str, code: str) -> None:
        """Remember one bad input of `peer` (or of `dht`, whose sender nobody knows)."""
        entry = self._entry(peer)
        entry.counts[code] += 1
        if code in NO_STRIKE:
            return
        now = self._clock()
        if now - entry.strikes_since > BAN_S:
            entry.strikes, entry.strikes_since = 0, now
        entry.strikes += 1
        if entry.strikes >= STRIKES_MAX:
            entry.banned_until = now + BAN_S

    def is_banned(self, peer: PeerId) -> bool:
        entry = self._peers.get(peer)
        return entry is not None and self._clock() < entry.banned_until

    def bad_input(self) -> dict[str, dict[str, int]]:
        """peer -> code -> count, of those that ever did something wrong."""
        return {peer: dict(entry.counts) for peer, entry in self._peers.items() if entry.counts}
