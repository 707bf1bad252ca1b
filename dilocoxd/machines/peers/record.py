"""What we hold about one other peer as long as the process lives: one record, one sentence for each field.

What is known of it at one height only: readiness.py. How each item enters and ends: protocol/06-rounds.md, table.py.
"""

from dataclasses import dataclass, field
from typing import Final

from dilocoxd.ids import Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.peers.view import PeerView

NEVER: Final = Monotonic(0.0)
NOWHERE: Final = RoundIndex(0)
PEERS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Claim:
    """What a peer said last about where it stands, if that is not where we are."""

    height: RoundIndex
    head: Digest
    kind: str
    since: Monotonic
    said_at: Monotonic
    """When it said so last."""


@dataclass(slots=True)
class Tip:
    """Where a peer says it stands, and how much its claims are worth (tips.py)."""

    claim: Claim | None = None
    is_unconfirmed: bool = False
    """Stands on a chain that recovery could not take, as far as we know."""
    backoff_until: Monotonic = NEVER
    """Its claims are ignored until then."""
    backoff_length: int = 0
    """Length of that in `recovery_retry_s`; 0: never, or a claim proved true since."""
    num_unavailable: int = 0
    """How often a branch that it claimed was not to be had; forgotten once a claim of it proves true."""
    num_overdue: int = 0
    """How often one was not shown in its time (R22.6); forgotten likewise."""
    ignored_height: RoundIndex = NOWHERE
    """How far on it said to be while its claims were ignored, since it stood where we stood or below."""
    ignored_at: Monotonic = NEVER
    """When it said so."""
    is_at_our_head: bool = False
    """Said that it stands where we stand; membership may hear of it later."""
    our_head_said_at: Monotonic = NEVER
    """When it said so itself last."""
    digest: Digest | None = None
    """State digest that it says it holds at our head."""


@dataclass(slots=True)
class PhaseTimes:
    """How long its phases last, as we saw its contributions come (pace.py)."""

    phase: int = -1
    seen_at: Monotonic | None = None
    """When its newest contribution was heard of; None before the first one and after an absence."""
    seconds: float | None = None
    """Of one phase, smoothed; None while nothing was measured."""
    still_s: float = 0.0
    """How long we were not running since then: its next contribution may have waited for us so long."""


@dataclass(slots=True)
class Standing:
    """One other peer."""

    view: PeerView | None = None
    """What membership says now; None: it does not know the peer. Where it stands, if that is lower, by its own word."""
    heartbeat: tuple[RoundIndex, Digest] | None = None
    """Where membership said last that it stands."""
    has_departed: bool = False
    """Said goodbye; not waited for even before membership knows."""
    has_missed_join: bool = False
    """Live at our head, but did not join an attempt in time."""
    has_missed_accept: bool = False
    """Live, but did not accept in time."""
    is_straggler: bool = False
    """Was due, but had nothing to offer when the grace was over."""
    suspicion: int = 0
    """How often it was alone in a later attempt when we heard of it."""
    tip: Tip = field(default_factory=Tip)
    phases: PhaseTimes = field(default_factory=PhaseTimes)

    @property
    def is_noted(self) -> bool:
        """There is something that others in its place must not wipe out: what it claims, lied about, or contributed."""
        tip = self.tip
        has_claims = tip.claim is not None or tip.backoff_length > 0 or tip.num_unavailable > 0
        return has_claims or self.has_departed or self.suspicion > 0 or self.phases.phase >= 0

    @property
    def is_live(self) -> bool:
        """Membership says so, and the peer has not said goodbye."""
        return self.view is not None and self.view.is_live and not self.has_departed


class PeerRecords(dict[PeerId, Standing]):
    """One record per peer. Reading that of an unknown peer gives an empty one and keeps nothing."""

    def __missing__(self, peer: PeerId) -> Standing:
        return Standing()

    def of(self, peer: PeerId) -> Standing:
        """The record to write in. Whom membership does not know is remembered only while there is room."""
        record = self.get(peer)
        if record is None:
            record = Standing()
            if len(self) < PEERS_MAX:
                self[peer] = record
        return record

    def put(self, peer: PeerId) -> Standing:
        """The record of a peer that membership knows; who writes it makes room before."""
        return self.setdefault(peer, Standing())
