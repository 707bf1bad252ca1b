"""The log entry: what a round decided, its hash chain, and the votes that prove it (protocol/06-rounds.md).

`Entry` is the part that is hashed: it names nothing that differs between two peers that agree (no attempt, no
coordinator, no time), so that a commit repeated by the survivors of a crash is the same entry with the same hash.
`SignedEntry` adds what proves it: the offer of each contributor and the votes. Result payloads are stored beside it in
the log and bound by their hashes.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from dilocoxd.errors import WireError
from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.wire.codec import Bounds, Length, Name, Sha256, Uint, decode_struct, encode_struct
from dilocoxd.wire.merkle import merkle_root

ENTRY_BYTES_MAX = 8 << 20
CONTRIBUTORS_MAX = 1024
EVIDENCE_MAX = 8
"""Equivocations that one entry may commit."""
RAMP_WHOLE = 64
"""Part of its weight, in 64ths, with which a contribution counts whose peer is not on probation (M11)."""
_ENTRY_DOMAIN = b"dilocoxd/2/entry\0"
_GENESIS_DOMAIN = b"dilocoxd/2/genesis\0"
_OFFER_DOMAIN = b"dilocoxd/2/offer\0"
_VOTE_DOMAIN = b"dilocoxd/2/vote\0"
_REVERT_DOMAIN = b"dilocoxd/2/revert\0"
ATTEMPT_OF_REVERTS = Attempt(2**31 - 1)


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature with the key that made it; the key proves the peer id."""

    public_key: Annotated[bytes, Length(1, 1024)]
    value: Annotated[bytes, Length(1, 1024)]


@dataclass(frozen=True, slots=True)
class Contribution:
    """One site's named share of a round. (peer, phase) occurs at most once in a chain."""

    peer: Annotated[PeerId, Length(1, 128)]
    phase: Annotated[PhaseId, Bounds(0, 2**63 - 1)]
    base_round: Annotated[RoundIndex, Bounds(0, 2**63 - 1)]
    """Height of the anchor that the phase started from (its age = round - base_round)."""
    inner_steps: Uint
    tokens: Annotated[int, Bounds(1, 2**48)]
    """Weight in the mean; capped by the manifest."""
    payload_root: Sha256
    """Merkle root over the sha256 of the first pass's segment payloads, in segment order (wire/merkle.py)."""


@dataclass(frozen=True, slots=True)
class VotedEntry:
    """One of two votes of an `Evidence`."""

    entry_hash: Sha256
    unix_ms: Uint
    signature: Annotated[bytes, Length(1, 1024)]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two votes of one peer in one attempt on one parent for different entries. Whoever has it can check it alone."""

    peer: Annotated[PeerId, Length(1, 128)]
    public_key: Annotated[bytes, Length(1, 1024)]
    round: Annotated[RoundIndex, Bounds(0, 2**63 - 1)]
    attempt: Annotated[Attempt, Bounds(0, 2**31 - 1)]
    parent: Sha256
    first: VotedEntry
    """The one whose entry has the smaller hash."""
    second: VotedEntry


@dataclass(frozen=True, slots=True)
class Entry:
    """Committed outer update k: state k -> state k + 1."""

    run_id: Name
    round: Annotated[RoundIndex, Bounds(0, 2**63 - 1)]
    parent: Sha256
    """Hash of entry k - 1, or the genesis hash for k = 0."""
    state_digest: Sha256
    """Digest of shared state k, the one this entry is applied to: a vote also certifies equal bits."""
    contributions: Annotated[tuple[Contribution, ...], Length(1, CONTRIBUTORS_MAX)]
    """Sorted by peer id; the order of summation."""
    result_hashes: Annotated[tuple[Sha256, ...], Length(1, 1 << 20)]
    """sha256 of each result segment payload, pass by pass, segment by segment."""
    lowrank_r: Uint
    """Low rank used by this entry's payloads; 0 = none."""
    next_lowrank_r: Uint
    next_inner_steps: Uint
    parent_voters: Annotated[tuple[Annotated[PeerId, Length(1, 128)], ...], Length(0, CONTRIBUTORS_MAX)]
    """Sorted: the contributors of the parent, whose votes committed it. Whoever has one entry knows them (R7.6)."""
    evidence: Annotated[tuple[Evidence, ...], Length(0, EVIDENCE_MAX)]
    """Sorted by peer, one each: from this entry on they count nowhere for a while."""
    ramps: Annotated[tuple[Annotated[int, Bounds(1, RAMP_WHOLE)], ...], Length(0, CONTRIBUTORS_MAX)] = ()
    """With what part of its weight each contribution counts, in 64ths, in their order; empty: all of them whole. Below
    RAMP_WHOLE is who was on probation. It follows from the chain; here, so that whoever has one entry knows it."""

    def ramp_of(self, place: int) -> int:
        """Part of the weight of the contribution at this place, in 64ths."""
        return self.ramps[place] if self.ramps else RAMP_WHOLE

    @property
    def counted(self) -> tuple[Contribution, ...]:
        """Contributions of those who were not on probation."""
        if not self.ramps:
            return self.contributions
        named = zip(self.contributions, self.ramps, strict=True)
        return tuple(contribution for contribution, ramp in named if ramp == RAMP_WHOLE)

    def place_of(self, peer: PeerId) -> int:
        """Of this peer's contribution in the order of summation; 0 for who has none."""
        return next((place for place, named in enumerate(self.contributions) if named.peer == peer), 0)


@dataclass(frozen=True, slots=True)
class VoteFor:
    """What a vote says, besides its time."""

    round: Annotated[RoundIndex, Bounds(0, 2**63 - 1)]
    attempt: Annotated[Attempt, Bounds(0, 2**31 - 1)]
    parent: Sha256
    entry_hash: Sha256


@dataclass(frozen=True, slots=True)
class SignedVote:
    """A voter's signature over `vote_text`; round, parent and hash are those of the entry it stands beside."""

    peer: Annotated[PeerId, Length(1, 128)]
    attempt: Annotated[Attempt, Bounds(0, 2**31 - 1)]
    unix_ms: Uint
    """When it was signed, by its peer's clock."""
    signature: Signature


@dataclass(frozen=True, slots=True)
class SignedEntry:
    """What the log stores: the entry, the offers of those it names, and the votes of those who committed it."""

    entry: Entry
    offers: Annotated[tuple[Signature, ...], Length(1, CONTRIBUTORS_MAX)]
    """Signatures under the contributions, in their order."""
    votes: Annotated[tuple[SignedVote, ...], Length(1, CONTRIBUTORS_MAX)]
    """Sorted by peer, one each, all of one attempt."""


def genesis_hash(run_id: RunId, manifest_sha256: bytes) -> Digest:
    """Chain head of a run without entries."""
    return Digest(hashlib.sha256(_GENESIS_DOMAIN + run_id.encode() + b"\0" + manifest_sha256).digest())


def entry_hash(entry: Entry) -> Digest:
    """Identity of an entry and chain head after it."""
    return Digest(hashlib.sha256(_ENTRY_DOMAIN + encode_struct(entry)).digest())


def offer_text(run: Digest, contribution: Contribution) -> bytes:
    """Exact bytes that a contributor signs. `run`: the run's genesis hash, which covers its whole manifest."""
    return _OFFER_DOMAIN + run + encode_struct(contribution)


def vote_text(run: Digest, vote: VoteFor, unix_ms: int) -> bytes:
    """Exact bytes that a vote signs. `run`: the run's genesis hash."""
    return _VOTE_DOMAIN + run + encode_struct(vote) + unix_ms.to_bytes(8, "big")


def voted_for(entry: Entry, digest: Digest, attempt: Attempt) -> VoteFor:
    """What a vote for this entry, whose hash is `digest`, says in this attempt."""
    return VoteFor(entry.round, attempt, entry.parent, digest)


def taken_back(round_index: RoundIndex, digest: Digest) -> VoteFor:
    """What a vote says that takes the entry of this round and hash back (R29): as if for one after it that cannot be,
    in an attempt that nobody gets to, so that it contradicts no other vote."""
    return VoteFor(round_index, ATTEMPT_OF_REVERTS, digest, hashlib.sha256(_REVERT_DOMAIN + digest).digest())


def entry_unix_ms(signed: SignedEntry) -> int:
    """When it was voted for: the median of its votes' times; the earlier one of two in the middle."""
    times = sorted(vote.unix_ms for vote in signed.votes)
    return times[(len(times) - 1) // 2]


def missing_contributors(turnout: Iterable[int], present: int) -> int:
    """X9.2: by how many an entry with `present` contributors is short of the fullest of the entries before it.

    `turnout`: number of contributors of each of these, in any order.
    """
    return max(0, max(turnout, default=0) - present)


def payload_root(segment_hashes: tuple[bytes, ...]) -> Digest:
    """Root that names a contribution's payload (X10)."""
    return merkle_root(segment_hashes)


def decode_entry(data: bytes) -> SignedEntry:
    """The signed entry in `data`. Raises WireError; checks form and order, not signatures."""
    signed = decode_struct(SignedEntry, data, size_max=ENTRY_BYTES_MAX)
    peers = [c.peer for c in signed.entry.contributions]
    if peers != sorted(set(peers)):
        raise WireError("malformed", "Entry.contributions are not sorted by peer, one each")
    if signed.entry.ramps and len(signed.entry.ramps) != len(peers):
        raise WireError("malformed", f"{len(signed.entry.ramps)} ramps for {len(peers)} contributions")
    if len(signed.offers) != len(peers):
        raise WireError("malformed", f"{len(signed.offers)} offers for {len(peers)} contributions")
    for what, named in (
        ("Entry.parent_voters", list(signed.entry.parent_voters)),
        ("Entry.evidence", [found.peer for found in signed.entry.evidence]),
        ("SignedEntry.votes", [vote.peer for vote in signed.votes]),
    ):
        if named != sorted(set(named)):
            raise WireError("malformed", f"{what} are not sorted by peer, one each")
    if len({vote.attempt for vote in signed.votes}) > 1:
        raise WireError("malformed", "SignedEntry.votes are of several attempts")
    return signed


def encode_entry(signed: SignedEntry) -> bytes:
    """Canonical bytes of a signed entry."""
    return encode_struct(signed)
