"""An audit's case: all but the bytes that anybody needs to sum one segment of an entry again (rule X13).

The shares, the result and, where shares are compared with it, the result before it lie beside the case as files
(store/audits.py). A case is written for our own outer worker and, when a result was false, kept as evidence. Pure.
"""

from dataclasses import dataclass
from typing import Annotated

from dilocoxd.errors import WireError
from dilocoxd.wire.clip_record import NORMS_KEPT, NUMBER_BYTES
from dilocoxd.wire.codec import Length, Sha256, Uint, decode_struct, encode_struct
from dilocoxd.wire.entry import CONTRIBUTORS_MAX, Entry, Signature, SignedVote
from dilocoxd.wire.merkle import PROOF_MAX, is_under

CASE_BYTES_MAX = 16 << 20
SHARE_PROOF_BYTES_MAX = 34 * (PROOF_MAX + 1) + 4
"""Of one share: hashes of 2 + 32 bytes, and the lengths of two lists."""
FRONT_BYTES = 8
RECENT_BYTES_MAX = NORMS_KEPT * NUMBER_BYTES


@dataclass(frozen=True, slots=True)
class ShareProof:
    """That a share is what its contributor signed."""

    sha256: Sha256
    """Of the contributor's whole payload of the segment, as it was sent."""
    proof: Annotated[tuple[Sha256, ...], Length(0, PROOF_MAX)]
    """That it is under the `payload_root` of the contribution (wire/merkle.py)."""


@dataclass(frozen=True, slots=True)
class AuditCase:
    """One segment of one entry of a run whose exchange has one pass."""

    entry: Entry
    offers: Annotated[tuple[Signature, ...], Length(1, CONTRIBUTORS_MAX)]
    """Signatures under the entry's contributions, in their order."""
    segment: Uint
    owner: Annotated[str, Length(0, 128)]
    """Who reduced the segment, by the proposal that this site took up; empty if it cannot say."""
    missing: Uint
    """By how many contributors the entry is short of the fullest recent one (X9); follows from the chain."""
    recent: Annotated[bytes, Length(0, RECENT_BYTES_MAX)]
    """Norms that the results of the last entries recorded of this segment, bf16; empty where they do not count."""
    proofs: Annotated[tuple[ShareProof, ...], Length(1, CONTRIBUTORS_MAX)]
    """Of each contribution, in the entry's order."""

    def unproved(self, num_segments: int) -> list[int]:
        """Places of the shares that are not under the root of their offer, as far as the case itself says."""
        named = zip(self.entry.contributions, self.proofs, strict=True)
        return [
            place
            for place, (offer, share) in enumerate(named)
            if not is_under(offer.payload_root, share.sha256, self.segment, num_segments, share.proof)
        ]


@dataclass(frozen=True, slots=True)
class CommitVotes:
    """Beside a case that is kept: the votes with which the site's log had the entry. They show that there was such an
    entry once it was taken back, and no log has it any more."""

    votes: Annotated[tuple[SignedVote, ...], Length(1, CONTRIBUTORS_MAX)]


def encode_commit_votes(votes: CommitVotes) -> bytes:
    """Canonical bytes."""
    return encode_struct(votes)


def decode_commit_votes(data: bytes) -> CommitVotes:
    """The votes in `data`. Raises WireError; checks form, not signatures."""
    return decode_struct(CommitVotes, data, size_max=CASE_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class SumProof:
    """What `proof/<entry>/<segment>` holds: with the shares, and the entry that the asker has itself, all that shows a
    result false (X14)."""

    shares: Annotated[tuple[ShareProof, ...], Length(1, CONTRIBUTORS_MAX)]
    """Of each contribution, in the entry's order."""


def sum_proof_bytes_max(num_contributions: int) -> int:
    """Encoded size of the largest proof for an entry with so many contributions."""
    return SHARE_PROOF_BYTES_MAX * num_contributions + FRONT_BYTES


def encode_sum_proof(proof: SumProof) -> bytes:
    """Canonical bytes."""
    return encode_struct(proof)


def decode_sum_proof(data: bytes, num_contributions: int) -> SumProof:
    """The proof in `data`, for an entry with so many contributions. Raises WireError; checks form, not proofs."""
    proof = decode_struct(SumProof, data, size_max=sum_proof_bytes_max(num_contributions))
    if len(proof.shares) != num_contributions:
        raise WireError("malformed", f"the proof has {len(proof.shares)} shares for {num_contributions} contributions")
    return proof


def encode_case(case: AuditCase) -> bytes:
    """Canonical bytes."""
    return encode_struct(case)


def decode_case(data: bytes) -> AuditCase:
    """The case in `data`. Raises WireError; checks form, not proofs."""
    case = decode_struct(AuditCase, data, size_max=CASE_BYTES_MAX)
    num = len(case.entry.contributions)
    if len(case.offers) != num or len(case.proofs) != num:
        raise WireError("malformed", f"the case has {len(case.offers)} offers and {len(case.proofs)} shares for {num}")
    if case.segment >= len(case.entry.result_hashes):
        raise WireError("malformed", f"the entry has no segment {case.segment}")
    if len(case.recent) % NUMBER_BYTES:
        raise WireError("malformed", f"the norms before the entry are {len(case.recent)} bytes, an odd number")
    return case
