"""The log entry: what a round decided, its hash chain, and the votes that prove it (protocol/06-rounds.md).

`Entry` is the part that is hashed: it names nothing that differs between two peers that agree (no attempt, no
coordinator, no time), so that a commit repeated by the survivors of a crash is the same entry with the same hash.
`SignedEntry` adds the votes. Result payloads are stored beside it in the log and bound by their hashes.
"""

import hashlib
from dataclasses import dataclass
from typing import Annotated

from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.wire.codec import Bounds, Length, Name, Sha256, Uint, decode_struct, encode_struct

ENTRY_BYTES_MAX = 8 << 20
CONTRIBUTORS_MAX = 1024
_ENTRY_DOMAIN = b"dilocoxd/1/entry\0"
_GENESIS_DOMAIN = b"dilocoxd/1/genesis\0"
_VOTE_DOMAIN = b"dilocoxd/1/vote\0"


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
    """sha256 over the concatenated sha256 of the first pass's segment payloads, in segment order."""


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


@dataclass(frozen=True, slots=True)
class SignedVote:
    """A contributor's signature over `vote_text(run_id, entry hash)`; the key proves the peer id."""

    peer: Annotated[PeerId, Length(1, 128)]
    public_key: Annotated[bytes, Length(1, 1024)]
    signature: Annotated[bytes, Length(1, 1024)]


@dataclass(frozen=True, slots=True)
class SignedEntry:
    """What the log stores: the entry and the votes of those who committed it."""

    entry: Entry
    votes: Annotated[tuple[SignedVote, ...], Length(1, CONTRIBUTORS_MAX)]
    time: Uint
    """Unix milliseconds at the peer that wrote this copy; informative, not hashed."""


def genesis_hash(run_id: RunId, manifest_sha256: bytes) -> Digest:
    """Chain head of a run without entries."""
    return Digest(hashlib.sha256(_GENESIS_DOMAIN + run_id.encode() + b"\0" + manifest_sha256).digest())


def entry_hash(entry: Entry) -> Digest:
    """Identity of an entry and chain head after it."""
    return Digest(hashlib.sha256(_ENTRY_DOMAIN + encode_struct(entry)).digest())


def vote_text(run_id: RunId, entry: Digest) -> bytes:
    """Exact bytes that a vote signs."""
    return _VOTE_DOMAIN + run_id.encode() + b"\0" + entry


def payload_root(segment_hashes: tuple[bytes, ...]) -> Digest:
    """Root that names a contribution's payload."""
    return Digest(hashlib.sha256(b"".join(segment_hashes)).digest())


def decode_entry(data: bytes) -> SignedEntry:
    """The signed entry in `data`. Raises WireError; checks form and order, not signatures."""
    signed = decode_struct(SignedEntry, data, size_max=ENTRY_BYTES_MAX)
    peers = [c.peer for c in signed.entry.contributions]
    if peers != sorted(set(peers)):
        raise WireError("malformed", "Entry.contributions are not sorted by peer, one each")
    return signed


def encode_entry(signed: SignedEntry) -> bytes:
    """Canonical bytes of a signed entry."""
    return encode_struct(signed)
