"""Settings of the decision machines: shape of the payloads, bounds on claims, and every time-out.

The driver builds them from the manifest (what all peers share) and from site.toml (own patience).
"""

from collections.abc import Callable
from dataclasses import dataclass

from dilocoxd.ids import Digest, PeerId, RunId
from dilocoxd.wire.entry import SignedVote


@dataclass(frozen=True, slots=True)
class PayloadShape:
    """Same at every peer: follows from the manifest."""

    num_passes: int
    segment_bytes: tuple[int, ...]
    """Payload bytes per segment of all passes together: the weight of a segment when owners are chosen."""

    @property
    def num_segments(self) -> int:
        return len(self.segment_bytes)


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Bounds of one run. Seconds unless the name says otherwise."""

    contributors_max: int = 64
    """Largest group of one round; INBOX needs as many slots less one."""
    tokens_max: int = 2**40
    """Most tokens one contribution may claim (it is its weight)."""
    inner_steps_max: int = 2**31
    contribution_age_max: int = 8
    """Oldest base of a contribution, in rounds; an older one is settled as not included."""
    has_majority_quorum: bool = False
    """`quorum = majority`."""
    grace_factor: float = 0.5
    """Stragglers are waited for by this part of the measured phase time after the first contribution was ready."""
    grace_min_s: float = 0.5
    grace_max_s: float = 60.0
    ready_repeat_s: float = 2.0
    """Ready is repeated at this interval until the round ends."""
    coordinator_patience_s: float = 5.0
    """How much longer than the coordinator's grace a member waits for a proposal."""
    progress_timeout_s: float = 20.0
    """An attempt without any progress (segment, reduction, vote) for this long is given up."""
    vote_timeout_s: float = 10.0
    """From holding all results to the last vote."""
    transfer_retry_s: float = 0.5
    behind_grace_s: float = 1.0
    """Seeing a peer that is ahead: wait this long for our own commit before recovery starts."""
    recovery_retry_s: float = 3.0
    leave_timeout_s: float = 12.0
    """A leaving peer finishes a running attempt for at most this long."""
    attempt_jump_max: int = 64
    """A Ready that is further ahead of every attempt we know than this is not believed."""
    site_steps_min: int = 0
    """`schedule.kind = per_site`: fewest inner steps of a slow site; 0: all sites plan the same number."""


@dataclass(frozen=True, slots=True)
class VoteKeys:
    """Injected pure functions; Ed25519/RSA stay outside of this floor."""

    sign: Callable[[bytes], SignedVote]
    verify: Callable[[SignedVote, bytes], bool]
    """Signature right for this text, and the key belongs to `vote.peer`."""


@dataclass(frozen=True, slots=True)
class Site:
    """Who we are, in which run."""

    me: PeerId
    run_id: RunId
    genesis: Digest
    keys: VoteKeys
