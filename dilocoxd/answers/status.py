"""GET /v1/status: what a daemon does, what it waits for and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.answers.fields import NAME_TOLD, Count, DaemonState, Hex, Ratio, Seconds, Unix, told
from dilocoxd.answers.nodes import Nodes
from dilocoxd.answers.peers import Probation
from dilocoxd.answers.progress import RunProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Where the trainers are."""

    phase: Annotated[Count | None, told("Number of the phase; null while none is trained.")]
    inner_step: Count
    inner_steps: Annotated[Count, told("Planned inner steps of this phase (H, extensions included).")]
    global_step: Count
    base_round: Annotated[
        Count | None,
        told(
            "Height of the anchor that the phase started from; until that is copied after a boundary still that of the"
            " phase before. Null while none is trained."
        ),
    ]
    step_seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What the round machine does now."""

    round: Count
    attempt: Count
    state: Annotated[str, told("idle, gathering, exchanging, voting, committing, applying, ...")]
    coordinator: str
    group: tuple[str, ...]
    observers: tuple[str, ...]
    waiting_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters: since this daemon started, `contributions` and `rounds_committed` since the run began."""

    tokens: Count
    inner_steps: Count
    contributions: Count
    rounds_committed: Count
    bytes_sent: Count
    bytes_received: Count
    idle_s: Annotated[Seconds, told("Time in which trainers waited for the daemon.")]
    train_s: Seconds
    attempts_failed: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeTotals:
    """Counters of all lives of this site in the run. null: events of earlier lives are gone."""

    tokens: Annotated[Count, told("Trained here, at least what the chain has of this site.")]
    inner_steps: Count
    bytes_sent: Count | None
    bytes_received: Count | None
    attempts_failed: Count | None
    counted_since: Annotated[Unix, told("Bytes and attempts count from here: the oldest event that is kept.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Newest losses."""

    inner: float | None
    validation: Annotated[float | None, told("Of the shared model.")]
    validation_round: Count | None
    validation_by_source: Annotated[
        dict[str, float], told("Of a run on token stores: on what each of them holds out; empty before the first.")
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCounts:
    """Three different questions: heard of, answering now, part of the newest entry."""

    known: Count
    live: Count
    with_data: Annotated[Count, told("Of the live: payloads to them travel on data connections.")]
    took_part_last_round: Count
    missed_last_round: Annotated[
        Count,
        told(
            "By how many that round was short of the fullest recent one; its step was smaller by that part"
            " (strategy.participation_rounds)."
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadSizes:
    """What one exchange carries; null before the outer worker has described the model."""

    parameters: Count
    fp32_bytes: Annotated[Count, told("Size of the uncompressed update.")]
    payload_bytes: Annotated[Count, told("Size of one compressed contribution.")]
    kept_from: Annotated[Count, told("Retention has dropped the payloads of all entries below this one.")]
    compression_ratio: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTimes:
    """The newest exchange with other sites beside what the formulas of `dilocoxd plan` make of those before it."""

    predicted_s: Seconds
    measured_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """The outer worker or p2pd."""

    state: str
    restarts: Count
    pid: Annotated[Count, told("0 while it does not run.")]
    part_pids: Annotated[
        tuple[Count, ...],
        told("Of each outer part, 0 while it does not run; empty where the outer worker is one process."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProcesses:
    """All trainers of this site, one for each stage."""

    state: str
    restarts: Count
    generation: Count
    pids: tuple[Count, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """What holds for the next round."""

    inner_steps: Annotated[Count, told("H: inner steps of a phase.")]
    lowrank_r: Annotated[Count, told("r: low rank of the payloads; 0 is none.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audits:
    """Reductions of others that this site summed again (reduction.verify); since this daemon started."""

    made: Annotated[Count, told("Segments whose result was compared.")] = 0
    proofs: Annotated[Count, told("Results found false; the evidence lies in site/evidence of the run directory.")] = 0
    bytes_received: Annotated[Count, told("Contributions and hashes fetched for audits.")] = 0
    shown: Annotated[Count, told("Segments that other sites told are false, and whose result was compared.")] = 0
    unanswered: Annotated[Count, told("Segments that could not be compared because a contributor did not answer.")] = 0
    undecided: Annotated[
        Count, told("Segments that could not be compared for a reason of this site: too busy, its own bytes, its disk.")
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VotedTwice:
    """A site that the chain proves to have voted twice in one attempt: its work is in no group with that of others."""

    peer_id: str
    name: Annotated[str, told(NAME_TOLD)]
    until_round: Annotated[Count, told("Last round that leaves it out.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Windows of the token stores that the model has read, by all sites since the run began, as the chain says."""

    taken: Annotated[Count, told("Reads that count: of each sample one an epoch.")]
    twice: Annotated[
        Count,
        told("Reads beside these: what another site, or the same one, had read as well. A new epoch is none of them."),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicAddress:
    """A public address, with the port of this site, at which others saw it."""

    address: str
    num_tried: Annotated[Count, told("Sites that tried to connect to it, of those asked in the last half hour.")]
    num_reached: Annotated[Count, told("Those that could. Nobody else's word is behind it.")]
    is_announced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """GET /v1/status."""

    peer_id: str
    name: Annotated[str, told(NAME_TOLD)]
    run_id: str
    version: str
    state: DaemonState
    waiting_for: Annotated[str, told("One plain sentence; empty while nothing is waited for.")]
    height: Annotated[Count, told("Committed outer steps.")]
    chain_head: Hex
    anchor_sha256: Hex
    state_digest: Hex
    started_at: Unix
    uptime_s: Seconds
    addresses: tuple[str, ...]
    join_address: str
    admission: Annotated[
        Literal["invite", "open", "closed"], told("Who may join. A link is a secret, so it is never shown here.")
    ]
    phase: Phase
    round: Round
    progress: RunProgress
    totals: Totals
    lifetime: LifetimeTotals
    losses: Losses
    peers: PeerCounts
    strategy: Strategy
    payload: PayloadSizes | None
    workers: Mapping[str, WorkerProcess | TrainerProcesses]
    bad_input: Annotated[Mapping[str, Mapping[str, Count]], told("Peer to kind of bad input to count.")]
    alerts: tuple[StandingAlert, ...]
    exchange: Annotated[ExchangeTimes | None, told("null before the second exchange with others.")] = None
    audits: Audits = field(default_factory=Audits)
    public_addresses: Annotated[tuple[PublicAddress, ...], told("What others say; empty: they see no public one.")] = ()
    samples: Annotated[
        Samples | None, told("null in a run on one text, whose windows are drawn: nobody knows which were read twice.")
    ] = None
    voted_twice: Annotated[
        tuple[VotedTwice, ...], told("Sites that voted twice in one attempt (R27), as the chain says.")
    ] = ()
    probation: Annotated[Probation | None, told("Of this site; null: it counts in full.")] = None
    place_wait: Annotated[
        str, told("Why rounds may go on without this site, which is on probation; empty: there is a place for it.")
    ] = ""
    nodes: Annotated[Nodes | None, told("Further machines of this site; null: it has none.")] = None
    unwatched: Annotated[
        str, told("Why the alert harmful_contribution cannot be raised here; empty: contributions are measured.")
    ] = ""
    rounds_behind: Annotated[
        Count | None,
        told(
            "By how many rounds the furthest site is ahead, as it says, while this one catches up, else 0; null: that"
            " is not known (yet)."
        ),
    ] = None
    took_part_last_round: Annotated[
        bool | None, told("Whether the newest entry names this site; null: there is none, or others have newer ones.")
    ] = None
