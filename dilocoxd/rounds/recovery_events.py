"""What enters and leaves the recovery machine: answers of peers and of our own site; questions and steps.

Rules for the driver (daemon/recovery_driver.py; tests/simulation/recovering.py):
- effects of one `handle` are carried out in the given order;
- a question (`Ask...`) is answered once, by its event or by AskFailed, unless `Cancel` came first. Questions run at the
  same time;
- a step (`Step`) concerns our own disk and state. There is never a second one before the first is answered. When our
  own disk or worker fails, the driver gives the machine up: what is on disk is a valid chain, and the next recovery
  goes on from there;
- every late or doubled answer is harmless.
"""

from dataclasses import dataclass

from dilocoxd.ids import Digest, Monotonic, PeerId, PhaseId
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.commands import InFlight, SettleContribution
from dilocoxd.rounds.recovery import Branch
from dilocoxd.wire.entry import Entry, SignedEntry

OWN_STATES = ("rebuilding", "weighing", "leaving", "adopting", "applying", "turning_back")
"""Wait for a step of our own site."""
STATES = (*OWN_STATES, "comparing", "choosing", "fetching_chunks", "fetching_payload", "done")


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Patience and bounds of one recovery."""

    replay_max: int = 16
    """More missing entries than this are skipped by a snapshot, if somebody has one."""
    answer_timeout_s: float = 60.0
    """How long the answer to a question may take, besides the time for its bytes."""
    slowest_bytes_per_s: float = 32 * 1024
    """A source that is slower than this counts as failed."""
    entries_max: int = 1 << 20
    """Longest branch."""
    window: int = 2
    """Chunks asked of one source at a time; one after a failure."""
    failures_max: int = 3
    """Failures in a row after which a source gets no more questions about chunks."""
    sources_max: int = 16
    """Sources of chunks at a time: bounds memory."""
    late_factor: float = 1.5
    """A chunk that is on its way for this many times what an idle source needs for one is asked for once more."""
    late_first_s: float = 10.0
    """The same for an idle source that has given none yet."""

    def patience_s(self, num_bytes: int) -> float:
        """How long a question about this many bytes may take."""
        return self.answer_timeout_s + num_bytes / self.slowest_bytes_per_s


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
class RecoveryStatus:
    """For the operator. `deadline` is None only while our own site carries out a step."""

    state: str
    """One of STATES."""
    waiting_for: str
    deadline: Monotonic | None
    patience_s: float | None
    """From the newest question to its deadline."""
    sources: tuple[PeerId, ...]
    """Peers that owe an answer."""
    problems: tuple[str, ...]
    """Sources that gave wrong bytes, and why other peers were of no use."""


# --- questions to others


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


# --- steps of our own site, one at a time


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The state of our log from snapshots and log; Rebuilt."""


@dataclass(frozen=True, slots=True)
class ReadOwn:
    """Our entries from `fork` on, and whether our disk leads to the state there; OwnRead."""

    fork: int


@dataclass(frozen=True, slots=True)
class CheckBranch:
    """`recovery.check_branch`, which takes long for many votes; BranchChecked."""

    branch: Branch
    base: ChainView


@dataclass(frozen=True, slots=True)
class LeaveOwn:
    """Books first, then our records aside, then the log cut at the fork; OwnLeft."""

    branch: Branch
    own: tuple[Entry, ...]
    in_flight: InFlight | None
    """Here and below: our contribution that is not settled yet, for the books."""


@dataclass(frozen=True, slots=True)
class OpenDownload:
    """Place for this snapshot; DownloadOpened names the chunks that are there from an earlier try."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class FinishDownload:
    """All chunks are there: make them durable, beside our own snapshots; DownloadFinished."""

    offer: Offer


@dataclass(frozen=True, slots=True)
class AdoptSnapshot:
    """Load it instead of replaying `skipped`, which go into the log without payloads; Adopted or AdoptRefused.

    It takes its place among our own snapshots only once it has proved right.
    """

    offer: Offer
    certified_by: Entry
    skipped: tuple[SignedEntry, ...]
    settle: SettleContribution | None
    """One of `skipped` names our contribution in flight. To be settled only once the state has proved right."""
    in_flight: InFlight | None


@dataclass(frozen=True, slots=True)
class TakeEntry:
    """Entry and the payload that `request` brought into the log, then applied; EntryTaken, or EntryRefused when it does
    not decode (then it is out of the log again)."""

    signed: SignedEntry
    request: int
    settle: SettleContribution | None
    in_flight: InFlight | None


@dataclass(frozen=True, slots=True)
class TurnBack:
    """The branch is false or cannot be had. `is_kept`: what was taken of it is better than ours anyway and stays.
    Otherwise the log is cut at the fork and our records are put back. Books, state, records aside; TurnedBack."""

    fork: int
    taken: tuple[SignedEntry, ...]
    own: tuple[Entry, ...]
    is_kept: bool
    in_flight: InFlight | None


Step = Rebuild | ReadOwn | CheckBranch | LeaveOwn | OpenDownload | FinishDownload | AdoptSnapshot | TakeEntry | TurnBack


# --- orders that nobody answers


@dataclass(frozen=True, slots=True)
class PauseTrainers:
    """Several states will follow each other."""

    reason: str


@dataclass(frozen=True, slots=True)
class CloseDownload:
    """No more chunks for now; what is there stays."""


@dataclass(frozen=True, slots=True)
class ForgetOwn:
    """The better branch is complete: drop the records that were set aside."""


@dataclass(frozen=True, slots=True)
class SourceDropped:
    """It gave a wrong chunk: it is counted and named."""

    peer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The last effect. `failure` is empty when at least one peer was compared, or our head moved."""

    failure: str
    settled: PhaseId | None
    refuted: tuple[PeerId, ...] = ()
    """Peers whose chain is provably false: malformed, not acceptable, on states that never were, or wrong chunks."""
    broken: tuple[PeerId, ...] = ()
    """Peers that did not answer, or whose branch could not be had to its end."""
    unasked: tuple[PeerId, ...] = ()
    """Not compared, because our head had moved."""


Effect = Ask | Cancel | Step | PauseTrainers | CloseDownload | ForgetOwn | SourceDropped | Done


# --- events


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


@dataclass(frozen=True, slots=True)
class Rebuilt:
    state_digest: Digest


@dataclass(frozen=True, slots=True)
class OwnRead:
    entries: tuple[Entry, ...]
    can_replay: bool
    base: ChainView
    """View of our chain below the fork."""


@dataclass(frozen=True, slots=True)
class BranchChecked:
    problem: str


@dataclass(frozen=True, slots=True)
class OwnLeft:
    pass


@dataclass(frozen=True, slots=True)
class DownloadOpened:
    present: frozenset[int]


@dataclass(frozen=True, slots=True)
class DownloadFinished:
    pass


@dataclass(frozen=True, slots=True)
class Adopted:
    pass


@dataclass(frozen=True, slots=True)
class AdoptRefused:
    reason: str


@dataclass(frozen=True, slots=True)
class EntryTaken:
    state_digest: Digest


@dataclass(frozen=True, slots=True)
class EntryRefused:
    reason: str


@dataclass(frozen=True, slots=True)
class TurnedBack:
    state_digest: Digest


@dataclass(frozen=True, slots=True)
class Tick:
    """`next_deadline` has passed (too early or too late is harmless)."""


Answer = EntriesCame | SnapshotsListed | OfferCame | ChunkCame | PayloadCame | AskFailed
StepDone = (
    Rebuilt
    | OwnRead
    | BranchChecked
    | OwnLeft
    | DownloadOpened
    | DownloadFinished
    | Adopted
    | AdoptRefused
    | EntryTaken
    | EntryRefused
    | TurnedBack
)
RecoveryEvent = Answer | StepDone | Tick
