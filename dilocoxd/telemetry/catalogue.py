"""Every event there is, as a type: what happened, with the values that explain it. Changes, never polling.

Names are `noun.past_participle`. Fields carry their unit last. Nothing secret, no tensors (docs/style.md 16, 17).
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    name: ClassVar[str]
    level: ClassVar[Level] = "info"
    is_detail: ClassVar[bool] = False
    """Nothing is wrong, and the lines of how it goes say the same in fewer words: on a terminal it is debug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStarted(Event):
    name: ClassVar[str] = "daemon.started"
    is_detail: ClassVar[bool] = True
    peer_id: str
    run_id: str
    version: str
    run_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStopped(Event):
    """`reason` is what ended it: signal, end of the run, or the failure."""

    name: ClassVar[str] = "daemon.stopped"
    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompleted(Event):
    """The chain holds the tokens of run.stop_after_tokens; the site writes the last state to disk,
    hands the last entry on and leaves."""

    name: ClassVar[str] = "run.completed"
    height: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLoaded(Event):
    name: ClassVar[str] = "config.loaded"
    is_detail: ClassVar[bool] = True
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiStarted(Event):
    """The HTTP API answers at this address."""

    name: ClassVar[str] = "api.started"
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePaused(Event):
    """An operator paused the trainers; the shared state goes on following the others."""

    name: ClassVar[str] = "site.paused"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResumed(Event):
    name: ClassVar[str] = "site.resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLevelChanged(Event):
    """Least severity of events on stderr or in the journal."""

    name: ClassVar[str] = "log.level_changed"
    least: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStageFailed(Event):
    """One address failed at one stage of joining; others may still work."""

    name: ClassVar[str] = "join.stage_failed"
    level: ClassVar[Level] = "warning"
    stage: str
    address: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmJoined(Event):
    name: ClassVar[str] = "swarm.joined"
    through: str
    num_live: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFound(Event):
    name: ClassVar[str] = "peer.found"
    peer: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost(Event):
    name: ClassVar[str] = "peer.lost"
    level: ClassVar[Level] = "warning"
    peer: str
    reason: str
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLeft(Event):
    name: ClassVar[str] = "peer.left"
    peer: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEvicted(Event):
    """Authorities or votes of members ended its membership: only a new invite lets it in. Nobody waits for it."""

    name: ClassVar[str] = "peer.evicted"
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerReinstated(Event):
    """Members had evicted it on a chain that was given up for a heavier one: it is let in again."""

    name: ClassVar[str] = "peer.reinstated"
    level: ClassVar[Level] = "warning"
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthoritiesChanged(Event):
    """Other authorities decide from now on who may join (or somebody has signed a second change beside theirs)."""

    name: ClassVar[str] = "authorities.changed"
    level: ClassVar[Level] = "warning"
    number: int
    threshold: int
    keys: tuple[str, ...]
    decided_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRejected(Event):
    """Bytes or a message from a peer that break the specification; counted and dropped."""

    name: ClassVar[str] = "input.rejected"
    level: ClassVar[Level] = "warning"
    peer: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted(Event):
    name: ClassVar[str] = "phase.started"
    level: ClassVar[Level] = "debug"
    phase: int
    base_round: int
    inner_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseExtended(Event):
    """The previous round is late, so the phase goes on (late_policy = extend)."""

    name: ClassVar[str] = "phase.extended"
    level: ClassVar[Level] = "debug"
    phase: int
    inner_steps: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseClosed(Event):
    name: ClassVar[str] = "phase.closed"
    is_detail: ClassVar[bool] = True
    phase: int
    inner_steps: int
    tokens: int
    mean_loss: float | None
    """Of the steps with a finite loss; None if there was none."""
    global_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundAbandoned(Event):
    """One attempt failed; the next one follows."""

    name: ClassVar[str] = "round.abandoned"
    level: ClassVar[Level] = "warning"
    round: int
    attempt: int
    reason: str
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCommitted(Event):
    name: ClassVar[str] = "round.committed"
    is_detail: ClassVar[bool] = True
    round: int
    attempt: int
    entry_hash: str
    contributors: tuple[str, ...]
    bytes_sent: int
    bytes_received: int
    exchange_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionRefused(Event):
    """Our own contribution was not usable (NaN or Inf) or did not get into the entry."""

    name: ClassVar[str] = "contribution.refused"
    level: ClassVar[Level] = "warning"
    phase: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionSettled(Event):
    """The fate of our contribution is known; not included: all of it is in the error feedback."""

    name: ClassVar[str] = "contribution.settled"
    is_detail: ClassVar[bool] = True
    phase: int
    round: int
    is_included: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContributionReturned(Event):
    """A fork took the entry with our contribution out of the chain, so its work goes into our error feedback and is
    offered again; withdrawn: a later fork brought the entry back."""

    name: ClassVar[str] = "contribution.returned"
    level: ClassVar[Level] = "warning"
    phase: int
    round: int
    is_withdrawn: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationMeasured(Event):
    name: ClassVar[str] = "validation.measured"
    is_detail: ClassVar[bool] = True
    round: int
    validation_loss: float
    by_source: dict[str, float] = field(default_factory=dict)
    """Of a run on token stores: the loss on what each of them holds out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWritten(Event):
    name: ClassVar[str] = "snapshot.written"
    is_detail: ClassVar[bool] = True
    round: int
    snapshot_bytes: int
    write_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileWritten(Event):
    """Inner steps were recorded as an operator asked; each rank has a file in the folder, below the run directory."""

    name: ClassVar[str] = "profile.written"
    folder: str
    first_step: int
    steps: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFailed(Event):
    """A profile that an operator asked for could not be recorded or written; training goes on."""

    name: ClassVar[str] = "profile.failed"
    level: ClassVar[Level] = "warning"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStarted(Event):
    """Catching up with, or moving to, a chain that others have."""

    name: ClassVar[str] = "recovery.started"
    own_height: int
    target_height: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryEnded(Event):
    name: ClassVar[str] = "recovery.finished"
    height: int
    recovery_s: float
    bytes_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkResolved(Event):
    """Of two branches the better one is taken, and our own entries leave the chain; or that one turned out to be false,
    or not to be had, and what came of it (`dropped`, perhaps nothing) leaves again for our own (`kept`)."""

    name: ClassVar[str] = "fork.resolved"
    level: ClassVar[Level] = "warning"
    fork_height: int
    kept: str
    dropped: str
    is_rolled_back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRebuilt(Event):
    """Others held other bits at our chain head (R23), and our state was made again from our snapshot and log.
    `segments`: the first of the `num_segments` whose bits were other ones before; none where that is not known."""

    name: ClassVar[str] = "state.rebuilt"
    level: ClassVar[Level] = "warning"
    round: int
    segments: tuple[int, ...]
    num_segments: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """`worker`: p2pd, fork_server, outer or trainer."""

    name: ClassVar[str] = "worker.started"
    is_detail: ClassVar[bool] = True
    worker: str
    pid: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied(Event):
    name: ClassVar[str] = "worker.died"
    level: ClassVar[Level] = "warning"
    worker: str
    pid: int
    reason: str
    restarts_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHeld(Event):
    """A test holds this daemon at a named point (DILOCOXD_FAULT is set); never in service."""

    name: ClassVar[str] = "fault.held"
    level: ClassVar[Level] = "warning"
    point: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopBlocked(Event):
    """The daemon's loop came back late. `doing`: calls that blocked it; empty: starved of CPU, or frozen as a whole."""

    name: ClassVar[str] = "loop.blocked"
    level: ClassVar[Level] = "warning"
    lag_s: float
    doing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRaised(Event):
    """Its level is that of the alert: error for critical, warning, info."""

    name: ClassVar[str] = "alert.raised"
    level: ClassVar[Level] = "error"
    code: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertCleared(Event):
    name: ClassVar[str] = "alert.cleared"
    code: str
