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
NO_STRIKE: Final = frozenset(
    {"truncated", "wrong_run", "wrong_protocol", "clock_skew", "not_ready", "not_allowed", "banned", "too_many_streams"}
    | {"too_many_bytes", "empty_exchanges", "busy", "stale", "other_state"}
    | {"not_admitted", "invite_expired", "invite_used_up", "invite_void", "unknown_authorities", "evicted"}
)
"""Counted but not held against a peer: an honest one gets there by a crash, a wrong setting, another branch, or bytes
that were on their way when an attempt was given up here."""


@dataclass(slots=True)
class _Entry:
    counts: Counter[str] = field(default_factory=Counter)
    strikes: int = 0
    strikes_since: float = 0.0
    banned_until: float = 0.0


class PeerGuard:
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
                del self._peers[self._least(peer)]
        self._peers.move_to_end(peer)
        return entry

    def _least(self, newest: str) -> str:
        """Whom to forget: the oldest that is not banned, for else a ban ends as soon as its peer has made new ids."""
        now = self._clock()
        others = [name for name in self._peers if name != newest]
        return next((name for name in others if self._peers[name].banned_until <= now), others[0])

    def admit(self, peer: PeerId) -> None:
        """A stream of `peer` begins. Raises WireError(not_allowed | banned)."""
        if self.allowed is not None and peer not in self.allowed:
            raise WireError("not_allowed", "peer id is not on the allow list of this site")
        entry = self._entry(peer)
        if self._clock() < entry.banned_until:
            raise WireError("banned", f"after {STRIKES_MAX} bad inputs; try again in {BAN_S:g} s")

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

    def bad_input(self) -> dict[str, dict[str, int]]:
        """peer -> code -> count, of those that ever did something wrong."""
        return {peer: dict(entry.counts) for peer, entry in self._peers.items() if entry.counts}
