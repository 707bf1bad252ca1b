"""Settings of the decision machines: shape of the payloads, bounds on claims, and every time-out.

The driver builds them from the manifest (what all peers share) and from site.toml (own patience).
"""

from collections.abc import Callable
from dataclasses import dataclass

from dilocoxd.ids import Digest, PeerId, RunId
from dilocoxd.wire.entry import Contribution, Signature, SignedVote, VoteFor, offer_text, vote_text


@dataclass(frozen=True, slots=True)
class PayloadShape:
    """Same at every peer: follows from the manifest."""

    num_passes: int
    segment_bytes: tuple[int, ...]
    """Payload bytes per segment of all passes together: the weight of a segment when owners are chosen."""
    is_gathered: bool = False
    """Every member gets all contributions and sums them itself (X11); no segment has an owner."""
    is_audited: bool = False
    """No vote before our audit of the results is over (X13, `verify = before_vote`)."""

    @property
    def num_segments(self) -> int:
        return len(self.segment_bytes)


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """Bounds of one run. Seconds unless the name says otherwise."""

    contributors_max: int = 64
    """Largest group of one round, and slots of INBOX: an observer keeps what all of them send."""
    tokens_max: int = 2**40
    """Most tokens one contribution may claim (it is its weight)."""
    inner_steps_max: int = 2**31
    stop_after_tokens: int = 0
    """No entry follows on a chain of so many tokens (R24); 0: there is no end."""
    contribution_age_max: int = 8
    """Oldest base of a contribution, in rounds; an older one is settled as not included."""
    has_majority_quorum: bool = False
    """`quorum = majority`."""
    final_depth: int = 0
    """Entries that follow one that is final (R28); 0: none ever is."""
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

    checkpoint: tuple[int, Digest] | None = None
    """Height and chain head that the join link named: no chain without it is taken (M6)."""

    def is_complete(self, weight: int) -> bool:
        """Whether a chain with so many tokens is at its end (R24)."""
        return 0 < self.stop_after_tokens <= weight


@dataclass(frozen=True, slots=True)
class VoteKeys:
    """Injected pure functions; Ed25519/RSA stay outside of this floor."""

    run: Digest
    """The run's genesis hash, which every signed text names."""
    sign: Callable[[VoteFor], SignedVote]
    """Our vote, with the time at which it is signed."""
    verify: Callable[[PeerId, Signature, bytes], bool]
    """Signature right for this text, and its key belongs to this peer."""

    def is_genuine(self, vote: SignedVote, what: VoteFor) -> bool:
        """Whether its peer signed this vote."""
        return self.verify(vote.peer, vote.signature, vote_text(self.run, what, vote.unix_ms))

    def is_offered(self, contribution: Contribution, offer: Signature) -> bool:
        """Whether its peer signed this contribution."""
        return self.verify(contribution.peer, offer, offer_text(self.run, contribution))


@dataclass(frozen=True, slots=True)
class Ourselves:
    """Who we are, in which run."""

    me: PeerId
    run_id: RunId
    genesis: Digest
    keys: VoteKeys
