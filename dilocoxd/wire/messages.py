"""Messages between daemons, with their numbers (protocol/registry.toml). Pure data; meaning in protocol/."""

from dataclasses import dataclass
from typing import Annotated

from dilocoxd.ids import Attempt, PeerId, RoundIndex
from dilocoxd.wire.admission import MEMBERSHIP_BYTES_MAX, REVOCATION_BYTES_MAX
from dilocoxd.wire.authorities import CHANGE_BYTES_MAX
from dilocoxd.wire.codec import Bounds, Length, Name, Registry, Sha256, Text, Uint
from dilocoxd.wire.entry import CONTRIBUTORS_MAX, EVIDENCE_MAX, Contribution, Evidence, Signature, SignedVote
from dilocoxd.wire.merkle import PROOF_MAX

PROTOCOL_MAJOR = 2
PROTOCOL_MINOR = 3
MESSAGE_BYTES_MAX = 1 << 20
RECORD_BYTES_MAX = 8192
NODE_PORTS_MAX = 64
HOSTS_MAX = 4

Round = Annotated[RoundIndex, Bounds(0, 2**63 - 1)]
Try = Annotated[Attempt, Bounds(0, 2**31 - 1)]
Peer = Annotated[PeerId, Length(1, 128)]
RecordBytes = Annotated[bytes, Length(1, RECORD_BYTES_MAX)]


@dataclass(frozen=True, slots=True)
class Hello:
    """First message in each direction: who speaks which protocol in which run."""

    protocol_major: Uint
    protocol_minor: Uint
    run_id: Name
    """Empty: the sender does not know the run yet and wants the manifest (joiner)."""
    unix_ms: Uint
    record: Annotated[bytes, Length(0, RECORD_BYTES_MAX)]
    """Sender's signed record (wire/records.py); empty for a joiner."""
    membership: Annotated[bytes, Length(0, MEMBERSHIP_BYTES_MAX)]
    """Sender's MembershipProof (wire/admission.py); empty where the run needs none, and for strangers."""
    data_port: Annotated[int, Bounds(0, 65535)]
    """Where the sender takes data connections (S11); 0: nowhere."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The connection or request is refused; `code` from registry.toml, `detail` for the operator."""

    code: Name
    detail: Text
    proof: Annotated[bytes, Length(0, REVOCATION_BYTES_MAX)]
    """With `evicted`: the encoded Revocation (wire/admission.py); else empty."""


@dataclass(frozen=True, slots=True)
class Records:
    """Membership push: signed records the sender believes newest, its own first. `reply` asks for the same back."""

    records: Annotated[tuple[RecordBytes, ...], Length(0, 100)]
    reply: bool


@dataclass(frozen=True, slots=True)
class Revocations:
    """Who was evicted, as far as the sender knows: encoded Revocations (wire/admission.py)."""

    items: Annotated[tuple[Annotated[bytes, Length(1, REVOCATION_BYTES_MAX)], ...], Length(1, 15)]


@dataclass(frozen=True, slots=True)
class AuthorityChanges:
    """Who may admit sites, as far as the sender knows: one encoded AuthorityChange each (wire/authorities.py)."""

    items: Annotated[tuple[Annotated[bytes, Length(1, CHANGE_BYTES_MAX)], ...], Length(1, 15)]


@dataclass(frozen=True, slots=True)
class NodePort:
    """Where a node of the sender takes contributions to the segments [first, stop) by data connections (S12)."""

    first: Annotated[int, Bounds(0, 65535)]
    stop: Annotated[int, Bounds(1, 65536)]
    port: Annotated[int, Bounds(1, 65535)]
    hosts: Annotated[tuple[Annotated[str, Length(1, 64)], ...], Length(1, HOSTS_MAX)]
    """IP addresses, best first."""


@dataclass(frozen=True, slots=True)
class DataPorts:
    """All that the sender has now, by first segment; empty: none any more. Whoever does not know it sends to the sender
    itself."""

    ports: Annotated[tuple[NodePort, ...], Length(0, NODE_PORTS_MAX)]


@dataclass(frozen=True, slots=True)
class Lock:
    """The entry that a peer voted for in an attempt that it has not seen committed."""

    attempt: Try
    entry_hash: Sha256
    voters: Annotated[tuple[Peer, ...], Length(1, CONTRIBUTORS_MAX)]
    results_held: bool
    """Sender still has the payload of this entry; without it, it can vote again but not commit by itself."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Sender stands at this head and takes part from `attempt` on: it will never vote in an earlier one."""

    round: Round
    attempt: Try
    parent: Sha256
    state_digest: Sha256
    contribution: Contribution | None
    """None: nothing to offer (yet); receives the result as an observer."""
    offer: Signature | None
    """The sender's signature under its contribution; None without one."""
    lock: Lock | None
    bandwidth: Uint
    """Measured outgoing bytes/s, for the owners' weights; 0 = unknown."""


@dataclass(frozen=True, slots=True)
class Propose:
    """Coordinator's group for one attempt. `owners[s]` indexes `contributions` and reduces segment s."""

    round: Round
    attempt: Try
    parent: Sha256
    state_digest: Sha256
    contributions: Annotated[tuple[Contribution, ...], Length(1, CONTRIBUTORS_MAX)]
    offers: Annotated[tuple[Signature, ...], Length(1, CONTRIBUTORS_MAX)]
    """Of the contributors, as they came with their Ready."""
    observers: Annotated[tuple[Peer, ...], Length(0, CONTRIBUTORS_MAX)]
    owners: Annotated[tuple[Uint, ...], Length(1, 1 << 16)]
    lowrank_r: Uint
    next_lowrank_r: Uint
    next_inner_steps: Uint
    parent_voters: Annotated[tuple[Peer, ...], Length(0, CONTRIBUTORS_MAX)]
    evidence: Annotated[tuple[Evidence, ...], Length(0, EVIDENCE_MAX)]


@dataclass(frozen=True, slots=True)
class ProposeCommit:
    """Coordinator found that every live voter of `lock` voted for it: they commit that entry, no new exchange."""

    round: Round
    attempt: Try
    lock: Lock
    voters: Annotated[tuple[Peer, ...], Length(1, CONTRIBUTORS_MAX)]


@dataclass(frozen=True, slots=True)
class Accept:
    """An observer's promise to the members of a proposal: it takes part in no other proposal of this attempt.

    Without it two groups that do not overlap could commit two entries in one round although nothing is broken."""

    round: Round
    attempt: Try
    coordinator: Peer


@dataclass(frozen=True, slots=True)
class ResultHashes:
    """After votes for different entries: what the sender holds as results, so that an owner who gave different bytes
    to different peers can be named."""

    round: Round
    attempt: Try
    hashes: Annotated[tuple[Sha256, ...], Length(1, 1 << 15)]
    """In (pass, segment) order."""


@dataclass(frozen=True, slots=True)
class Vote:
    """Sender holds all result segments of this attempt and would commit exactly this entry."""

    round: Round
    parent: Sha256
    entry_hash: Sha256
    vote: SignedVote

    @property
    def attempt(self) -> Attempt:
        """In which it was cast."""
        return self.vote.attempt


@dataclass(frozen=True, slots=True)
class Accuse:
    """Somebody voted twice in one attempt; sent on once to everybody, until an entry holds it."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Votes to take back the entry of this round, which spoiled the model: all that the sender knows (R29)."""

    round: Round
    entry_hash: Sha256
    votes: Annotated[tuple[SignedVote, ...], Length(1, CONTRIBUTORS_MAX)]


@dataclass(frozen=True, slots=True)
class FalseSum:
    """The sender can show that the result of this segment in this entry does not follow from what was offered (X14):
    whoever asks gets the shares with their proofs, and sums them itself."""

    round: Round
    entry_hash: Sha256
    segment: Annotated[int, Bounds(0, 65535)]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Sender gives up `attempt`, with the reason (peer lost, time-out, store failure)."""

    round: Round
    attempt: Try
    reason: Text
    blames: Annotated[tuple[Peer, ...], Length(0, 64)]
    """Whom the sender waited for in vain: it must not be in one group with them for some rounds."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Sender has committed this entry (and has its payload): pull it by `chain/<from>` and `payload/<round>`."""

    round: Round
    entry_hash: Sha256


@dataclass(frozen=True, slots=True)
class Leaving:
    """Sender leaves on purpose after `round`; do not wait for it."""

    round: Round
    reason: Text


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """In front of bulk bytes: which piece of which segment this is. `kind`: 0 contribution, 1 result."""

    run_id: Name
    round: Round
    attempt: Try
    kind: Annotated[int, Bounds(0, 1)]
    pass_index: Uint
    segment: Uint
    phase: Uint
    """Contribution: sender's phase. Result: 0."""
    segment_bytes: Uint
    offset: Uint
    """First byte of this piece inside the segment's payload."""
    piece_bytes: Uint
    segment_sha256: Sha256
    """Of the whole segment payload; checked when the last piece is in."""
    root: Sha256
    """Contribution: Merkle root over its segments of this pass. Result: over the roots of all summands (X10)."""
    proof: Annotated[tuple[Sha256, ...], Length(0, PROOF_MAX)]
    """That `segment_sha256` is under `root`; empty in front of a result."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask for stored bytes. `resource`: a name of rule L1, `chain/<from>` or `payload/<round>`, say."""

    run_id: Name
    resource: Name
    offset: Uint
    length_max: Uint
    """0 = to the end."""


@dataclass(frozen=True, slots=True)
class FetchHeader:
    """Answer to Fetch: total size of the resource and hash of the whole; the bytes from `offset` follow."""

    total_bytes: Uint
    offset: Uint
    length: Uint
    sha256: Sha256


PEER_MESSAGES = Registry(
    {
        2: Hello,
        4: Refuse,
        6: Records,
        20: Ready,
        22: Propose,
        24: ProposeCommit,
        26: Vote,
        28: Abandon,
        30: Committed,
        32: Leaving,
        34: ResultHashes,
        36: Accept,
        38: Accuse,
        40: SegmentHeader,
        42: Fetch,
        44: FetchHeader,
        46: Revocations,
        48: AuthorityChanges,
        50: TakeBack,
        52: FalseSum,
        53: DataPorts,
    },
    size_max=MESSAGE_BYTES_MAX,
)
