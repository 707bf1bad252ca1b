"""Questions of a recovery to other peers, each with a request number, and the answers to them."""

from dataclasses import dataclass

from dilocoxd.ids import PeerId
from dilocoxd.wire.entry import Entry, SignedEntry


@dataclass(frozen=True, slots=True)
class Offer:
    """A snapshot of the state that an entry of the branch was voted on, as one source describes it."""

    round: int
    key: bytes
    """Equal for equal bytes: which other sources have the same one."""
    chunk_bytes: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return sum(self.chunk_bytes)


@dataclass(frozen=True, slots=True)
class AskEntries:
    """`chain/<first>`; EntriesCame."""

    request: int
    peer: PeerId
    first: int


@dataclass(frozen=True, slots=True)
class AskSnapshots:
    """`snapshots`; SnapshotsListed."""

    request: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class AskOffer:
    """The index of the snapshot that this entry certifies, checked against it; OfferCame."""

    request: int
    peer: PeerId
    certified_by: Entry


@dataclass(frozen=True, slots=True)
class AskChunk:
    """Chunk `number` of the open download: fetched, its hash compared, then on disk; ChunkCame."""

    request: int
    peer: PeerId
    number: int


@dataclass(frozen=True, slots=True)
class AskPayload:
    """Payload of this entry, compared with its hashes and kept under `request`; PayloadCame."""

    request: int
    peer: PeerId
    signed: SignedEntry


@dataclass(frozen=True, slots=True)
class Cancel:
    """The answer does not matter any more."""

    request: int


Ask = AskEntries | AskSnapshots | AskOffer | AskChunk | AskPayload


@dataclass(frozen=True, slots=True)
class EntriesCame:
    request: int
    entries: tuple[SignedEntry, ...]


@dataclass(frozen=True, slots=True)
class SnapshotsListed:
    request: int
    rounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OfferCame:
    request: int
    offer: Offer


@dataclass(frozen=True, slots=True)
class ChunkCame:
    request: int


@dataclass(frozen=True, slots=True)
class PayloadCame:
    request: int


@dataclass(frozen=True, slots=True)
class AskFailed:
    """`is_final`: asking this source again is in vain (it refused, or its answer was not to be believed);
    `is_wrong`: the bytes were not what they must be."""

    request: int
    reason: str
    is_final: bool = False
    is_wrong: bool = False


Answer = EntriesCame | SnapshotsListed | OfferCame | ChunkCame | PayloadCame | AskFailed
