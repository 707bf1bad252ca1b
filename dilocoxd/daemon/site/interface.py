"""What the rest of the daemon may ask of its site, and what the site tells it (docs/internals.md sections 2 and 4).

`daemon/site/site.py` implements `TrainingSite`. Life of a site, seen from `daemon/app.py`:

    site = LocalSite(settings, emit)                  # emit: SiteEvent -> None, called on the loop, must not block
    group.create_task(site.run(), name="site")        # starts workers; ends after leave(); WorkerError = budget spent
    layout = await site.ready()                       # outer worker is up: sizes of payloads
    await site.load_state("")                         # genesis, or a snapshot directory
    await site.apply_entry(committed)                 # each entry of the log, in order, also while catching up
    await site.begin(StartingPoint(...))              # caught up: error feedback is restored, training starts
    ... OfferContribution -> round machine; reduce / prepare_pass while an exchange runs; apply_entry at commit ...
    await site.leave()                                # trainers write checkpoints, feedback is saved, workers end

Who settles: the round machine owns the question for which rounds a contribution was offered. It says so once, in the
`settles` of apply_entry or load_state, or with `abandon_contribution`; after that it never offers that phase again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

from dilocoxd.answers.nodes import Nodes
from dilocoxd.answers.site import ProfileStatus
from dilocoxd.config.agreement import Delay
from dilocoxd.config.footprint.nodes import NO_NEEDS, NodeNeeds
from dilocoxd.daemon.workers.forked import OUTER_MODULE, TRAINER_MODULE
from dilocoxd.errors import WorkerError
from dilocoxd.ids import Digest, PhaseId, RoundIndex
from dilocoxd.machines.phase.inputs import CommittedEntry
from dilocoxd.machines.phase.outputs import OfferContribution, TellSpoiled, TellTrains
from dilocoxd.machines.phase.settings import StartingPoint
from dilocoxd.machines.phase.vocabulary import TrainerCommand
from dilocoxd.machines.reading.volumes import ALL_VOLUMES, HeldVolumes
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.cluster import FeedbackMissing
from dilocoxd.wire.local.outer_worker import PassReady, ReducedAgain, SegmentReduced, Share, SnapshotSaved, StateReady
from dilocoxd.wire.local.trainer import LeftOut, StageTimes

NO_PROFILE: Final = ProfileStatus()
WorkerState = Literal["starting", "running", "lost", "stopped"]
WorkerRole = Literal["fork_server", "outer", "trainer"]


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """What the manifest and site.toml say about this site's inside."""

    run_directory: Path
    delay: Delay
    inner_steps: int
    """Of the first phase; later ones follow the newest entry's `next_inner_steps`."""
    extend_steps_max: int
    """Steps that a phase may grow by when the entry is late; 0 = wait at once."""
    evaluate_every_rounds: int
    """Validation loss of state k when k is a multiple of this; 0 = never."""
    without_one_every: int = 0
    """Of these states one in so many is also measured without one contribution; 0 = never."""
    peer_id: str = ""
    """Names this site in the logs of its workers, and the order in which its trainers read the text."""
    lowrank_r: int = 0
    """Of the first contribution; later ones follow the newest entry's `next_lowrank_r`."""
    site_steps_min: int = 0
    """Fewest inner steps of a slow site with schedule per_site, else 0."""
    with_samples: Callable[[TrainerCommand], TrainerCommand] = lambda command: command
    """Adds to a command that begins a phase which samples it reads (daemon/chain/reading_plan.py)."""
    volumes: HeldVolumes = ALL_VOLUMES
    """Of the run's shared stores, those that are here."""
    num_stages: int = 1
    is_training: bool = True
    """False: observer, an outer worker without trainers."""
    save_feedback_every_rounds: int = 1
    """Error feedback goes to disk after every n-th round, and when leaving; 0 = only when leaving."""
    trainer_environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the trainers (CUDA_VISIBLE_DEVICES ...); the modules are loaded before."""
    outer_environment: Mapping[str, str] = field(default_factory=dict)
    trainer_modules: tuple[str, ...] = (TRAINER_MODULE,)
    """The trainers run `main()` of the first; all of them are loaded before the first fork."""
    outer_parts: int = 1
    """Processes that hold the outer state, each some of the segments; `node_parts` further ones run on nodes."""
    node_parts: int = 0
    node_stages: int = 0  # the last ones of the pipeline
    stage_ranks: int = 1
    """Trainers of each stage."""
    node_address: tuple[str, int] = ("127.0.0.1", 0)
    """Where nodes come to; port 0: any. One that is only silent is waited for `node_grace_s`."""
    node_grace_s: float = 60.0
    node_key_file: str = "node.key"
    node_needs: NodeNeeds = NO_NEEDS
    outer_module: str = OUTER_MODULE
    restarts_max: int = 5
    """Per worker in `restart_window_s`; one more and the site fails."""
    restart_window_s: float = 600.0
    trainer_start_timeout_s: float = 300.0
    outer_start_timeout_s: float = 300.0
    """A worker that says nothing for so long while it starts has failed."""
    outer_silence_max_s: float = 60.0
    """The outer worker is killed when it owes an answer and gives no sign of life for so long."""
    trainer_silence_factor: float = 20.0
    """The trainer is killed when it owes a step and is silent for this many median steps, at least the next field."""
    trainer_silence_min_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SiteLayout:
    """Sizes that follow from the manifest, as the outer worker described them."""

    numel: int
    payload_bytes: Mapping[int, tuple[tuple[int, ...], ...]]
    """By low rank: [pass][segment] bytes of a payload; OUTBOX and RESULT hold the concatenation, INBOX one block per
    slot with room for the longest."""
    inbox_slots: int
    """Number of contributions that INBOX has room for."""
    record_bytes: int = 0
    """Of the record at the end of each payload of the last pass."""
    center_start: int = 0
    """Where in MEMORY that lies which shares are compared with; 0: nothing is."""


class BadShare(WorkerError):
    """The payload in INBOX `slot` (-1: our own) does not decode."""

    def __init__(self, slot: int, detail: str) -> None:
        super().__init__(f"the payload in slot {slot} does not decode: {detail}")
        self.slot = slot


class BadResult(WorkerError):
    """The result of `segment` in RESULT does not decode."""

    def __init__(self, segment: int, detail: str) -> None:
        super().__init__(f"the result of segment {segment} does not decode: {detail}")
        self.segment = segment


# --- events: site -> daemon -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepReported:
    phase: PhaseId
    inner_step: int
    global_step: int
    loss: float
    tokens: int
    step_seconds: float
    idle_seconds: float
    """Of all generations of the trainer together."""
    learning_rate: float | None = None
    gradient_norm: float | None = None


@dataclass(frozen=True, slots=True)
class AnchorAdopted:
    """The trainers have taken anchor `round` (how: start, replace, merge or mix)."""

    round: RoundIndex
    how: str
    phase: PhaseId
    inner_step: int


@dataclass(frozen=True, slots=True)
class ContributionLeftOut:
    """State `round` was measured without the contribution in one place of its entry; as in wire/local/trainer.py."""

    round: RoundIndex
    measured: LeftOut


@dataclass(frozen=True, slots=True)
class LossesTold:
    """So many losses of batches a loop of the operator's own told when it was asked to evaluate."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """A worker was started, lost or stopped; `reason` is for the operator."""

    role: WorkerRole
    state: WorkerState
    restarts: int
    reason: str
    pid: int = 0
    """First process of the worker, also of one that was lost."""
    generation: int = 0
    restarts_left: int = 0
    """Inside the present window."""


@dataclass(frozen=True, slots=True)
class LoopLagged:
    """The daemon's loop came back `seconds` late: something blocked it, or the machine is starved or was frozen."""

    seconds: float
    doing: str
    """The calls that it was in; empty: nobody could see it."""


Shown = (
    catalogue.PhaseStarted
    | catalogue.PhaseClosed
    | catalogue.PhaseExtended
    | catalogue.ContributionRefused
    | catalogue.ContributionSettled
    | catalogue.ValidationMeasured
    | catalogue.ProfileWritten
    | catalogue.ProfileFailed
    | FeedbackMissing
)
"""What people read as it is; a settled contribution is told again if the outer worker died over it."""

SiteEvent = (
    OfferContribution
    | TellSpoiled
    | TellTrains
    | StepReported
    | AnchorAdopted
    | ContributionLeftOut
    | LossesTold
    | WorkerChanged
    | LoopLagged
    | Shown
)


# --- state for GET /v1/status ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    state: str
    restarts: int
    pids: tuple[int, ...]
    generation: int
    part_pids: tuple[int, ...] = ()
    """Of each outer part, 0 while it does not run; empty where there is only one."""


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """One consistent look at the site; cheap."""

    waiting_for: str  # one sentence; empty while it trains undisturbed
    is_training: bool
    phase: PhaseId | None
    inner_step: int
    inner_steps: int
    global_step: int
    base_round: RoundIndex | None
    step_seconds: float
    idle_seconds: float
    train_seconds: float
    tokens: int
    in_flight: PhaseId | None  # phase of the contribution that is formed and not settled
    state_round: RoundIndex | None
    anchor_sha256: Digest | None
    state_digest: Digest | None
    workers: Mapping[str, WorkerStatus]
    work_needed: frozenset[PhaseId] | None = frozenset()  # kept work that must not be dropped; None: none may be
    in_flight_content: Mapping[PhaseId, int] = field(default_factory=dict)  # whose work is in `in_flight`
    tokens_per_step: int = 0
    shared_steps: int | None = None  # inner steps that the shared state stands for; None before one is loaded
    learning_rate: float | None = None  # of the newest inner step, like the next one
    gradient_norm: float | None = None
    data_seconds: float | None = None  # of an inner step, for reading its batch
    bubble: float | None = None  # part of it in which stages of a pipeline wait; None: there is no pipeline
    stages: StageTimes | None = None  # what places of a pipeline compute, and a faster cut; None: not known
    doing: str = ""  # what the trainers are busy with while that is no inner step
    skipped_steps: int = 0  # since the daemon started
    rank_memory_bytes: tuple[int, ...] = ()  # of each trainer process; empty before its first step
    profile: ProfileStatus = NO_PROFILE
    spoiled_by: tuple[RoundIndex | None, RoundIndex] | None = None
    """Nothing can be trained from the shared state, and the trainers wait for another one: rounds [first, end) of the
    entries that may be why; first None: unknown. None: it is sound."""
    nodes: Nodes | None = None  # None: it has none

    @property
    def is_spoiled(self) -> bool:
        """Nothing can be trained from the shared state."""
        return self.spoiled_by is not None


class BufferAccess(Protocol):
    """pread/pwrite views of OUTBOX, INBOX and RESULT; they never map, so resident memory stays flat."""

    def size(self, name: str) -> int:
        """Bytes of buffer `name`."""
        ...

    def fd(self, name: str) -> int:
        """File descriptor, for system calls that copy without us. Raises KeyError."""
        ...

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises ValueError outside the buffer."""
        ...

    def write(self, name: str, offset: int, data: bytes | bytearray | memoryview) -> None:
        """All of `data`. Raises ValueError outside the buffer."""
        ...

    def punch(self, name: str, offset: int, length: int) -> None:
        """Give the memory of this range back; it reads as zeros."""
        ...


class TrainingSite(Protocol):
    """The calls. All coroutines may be cancelled: what was ordered still happens, in order."""

    @property
    def buffers(self) -> BufferAccess:
        """OUTBOX, INBOX and RESULT."""
        ...

    async def run(self) -> None:
        """Start the workers and serve until `leave` is done. Raises WorkerError when a restart budget is spent."""
        ...

    async def ready(self) -> SiteLayout:
        """Wait for the outer worker's description of the buffers."""
        ...

    async def load_state(
        self, directory: str, *, settles: PhaseId | None = None, is_included: bool = False, forgets: bool = False
    ) -> StateReady:
        """Replace the shared state by a snapshot directory (genesis if empty); trainers take the new anchor when they
        may. Raises WorkerError(detail) if the snapshot is unusable; the state before is gone then. Call `pause` first
        if more follows: otherwise the trainers take every state on the way. `forgets`: error feedback too."""
        ...

    async def apply_entry(self, committed: CommittedEntry) -> StateReady:
        """Settle, then apply; returns when the buffers hold state round + 1. Survives restarts of the outer worker.
        Raises WorkerError if the payload does not decode (state unchanged)."""
        ...

    async def abandon_contribution(self, phase: PhaseId, *, is_voted: bool) -> None:
        """It goes to the error feedback. `is_voted`: an entry may name it still, and `move_work` take it out again."""
        ...

    async def move_work(self, phase: PhaseId, *, is_withdrawn: bool) -> bool:
        """A fork took the entry with this contribution out of the chain (its kept work goes into the error feedback),
        or brought it back (withdrawn). False: it knew that already."""
        ...

    async def begin(self, start: StartingPoint) -> None:
        """Caught up for the first time: restore error feedback if it is still right, then train."""
        ...

    def pause(self, reason: str) -> None:
        """Trainers stop at the next inner-step boundary; the outer worker goes on (entries are still applied)."""
        ...

    def resume(self) -> None:
        """Trainers go on."""
        ...

    def profile(self, steps: int) -> None:
        """Have the ranks record their next inner steps; `status().profile` tells what comes of it. Only while none is
        recorded, and the trainers train."""
        ...

    def beat(self) -> int:
        """How many events the site's driver has handled; asks it to handle one more. For the watchdog."""
        ...

    def others_due(self, at: float | None, step_seconds: tuple[float, ...] = ()) -> None:
        """When (loop time) the other sites are due; with per_site their step times (machines/phase/inner_steps.py)."""
        ...

    async def reduce(
        self, pass_index: int, segment: int, shares: tuple[Share, ...], lowrank_r: int, *, timeout_s: float = 120.0
    ) -> SegmentReduced:
        """Owner's mean of one segment into RESULT. Raises BadShare(slot) for a payload that does not decode,
        WorkerError when the outer worker does not come back in time."""
        ...

    async def reduce_again(self, directory: str, *, timeout_s: float = 60.0) -> ReducedAgain:
        """Sum the segment of an audit's folder again; touches no buffer. Raises BadShare(place) for a share that does
        not decode, WorkerError."""
        ...

    async def prepare_pass(self, pass_index: int, lowrank_r: int, *, timeout_s: float = 120.0) -> PassReady:
        """All results of the pass before are in RESULT: fill OUTBOX for this pass; behind the last pass, check that all
        results decode. Raises BadResult(segment) for one that does not, WorkerError."""
        ...

    async def write_snapshot(self, directory: str, *, timeout_s: float = 600.0) -> SnapshotSaved:
        """Write the shared state to `directory`, in the background of everything else."""
        ...

    async def leave(self) -> None:
        """Checkpoint and stop the trainers, save error feedback, stop the outer worker; then `run` returns."""
        ...

    def status(self) -> SiteStatus:
        """For GET /v1/status."""
        ...
