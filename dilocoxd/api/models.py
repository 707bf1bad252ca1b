"""Decides the shape of every answer of the HTTP API v1: the schemas of the OpenAPI document, with units in the names.

Answers are built as plain values by the daemon (daemon/view.py) and are not checked at run time; tests hold live
answers against these models. Times are seconds since the unix epoch unless the name ends in `_s` (a duration).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Unix = Annotated[float, Field(ge=0)]
Hex = Annotated[str, Field(pattern="^[0-9a-f]*$")]
Severity = Literal["info", "warning", "critical"]
DaemonState = Literal["starting", "joining", "catching_up", "training", "leaving", "paused", "failed"]


class Model(BaseModel):
    """Base: no other fields than the documented ones."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(Model):
    """An error (RFC 9457)."""

    type: str = Field(description="about:blank, or what kind of problem it is; see the runbook.")
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str = Field(description="One sentence: what is wrong and what to do.")


class Health(Model):
    """The daemon is well."""

    ok: Literal[True]


class Phase(Model):
    """Where the trainers are."""

    phase: Count | None = Field(description="Number of the phase; null while none is trained.")
    inner_step: Count
    inner_steps: Count = Field(description="Planned inner steps of this phase (H, extensions included).")
    global_step: Count
    base_round: Count | None = Field(
        description="Height of the anchor that the phase started from; until that is copied after a boundary still that"
        " of the phase before. Null while none is trained."
    )
    step_seconds: Seconds


class Round(Model):
    """What the round machine does now."""

    round: Count
    attempt: Count
    state: str = Field(description="idle, gathering, exchanging, voting, committing, applying, ...")
    coordinator: str
    group: list[str]
    observers: list[str]
    waiting_for: str


class Totals(Model):
    """Counters: since this daemon started, `contributions` and `rounds_committed` since the run began."""

    tokens: Count
    inner_steps: Count
    contributions: Count
    rounds_committed: Count
    bytes_sent: Count
    bytes_received: Count
    idle_s: Seconds = Field(description="Time in which trainers waited for the daemon.")
    train_s: Seconds
    attempts_failed: Count


class Losses(Model):
    """Newest losses."""

    inner: float | None
    validation: float | None = Field(description="Of the shared model.")
    validation_round: Count | None


class PeerCounts(Model):
    """Three different questions: heard of, answering now, part of the newest entry."""

    known: Count
    live: Count
    took_part_last_round: Count
    missed_last_round: Count = Field(
        description="By how many that round was short of the fullest recent one; its step was smaller by that part"
        " (strategy.participation_rounds)."
    )


class Payload(Model):
    """What one exchange carries; null before the outer worker has described the model."""

    parameters: Count
    fp32_bytes: Count = Field(description="Size of the uncompressed update.")
    payload_bytes: Count = Field(description="Size of one compressed contribution.")
    kept_from: Count = Field(default=0, description="Retention has dropped the payloads of all entries below this one.")
    compression_ratio: Annotated[float, Field(ge=0)]


class Worker(Model):
    """A process of this site."""

    state: str
    restarts: Count
    pid: Count | None = None
    pids: list[Count] | None = None
    generation: Count | None = None


class Strategy(Model):
    """What holds for the next round."""

    inner_steps: Count = Field(description="H: inner steps of a phase.")
    lowrank_r: Count = Field(description="r: low rank of the payloads; 0 is none.")


class AlertShort(Model):
    """An alert that stands now."""

    code: str
    severity: Severity
    text: str
    remedy: str
    since: Unix


class Alert(AlertShort):
    """An alert that stands now, with its entry of the runbook."""

    summary: str = Field(description="What this kind of alert means, in plain words.")
    cause: str
    runbook: str = Field(description="Anchor in docs/operations/runbook.md.")


class Status(Model):
    """GET /v1/status."""

    peer_id: str
    run_id: str
    version: str
    state: DaemonState
    waiting_for: str = Field(description="One plain sentence; empty while nothing is waited for.")
    height: Count = Field(description="Committed outer steps.")
    chain_head: Hex
    anchor_sha256: Hex
    state_digest: Hex
    started_at: Unix
    uptime_s: Seconds
    addresses: list[str]
    join_address: str
    phase: Phase
    round: Round
    totals: Totals
    losses: Losses
    peers: PeerCounts
    strategy: Strategy
    payload: Payload | None
    workers: dict[str, Worker]
    bad_input: dict[str, dict[str, Count]] = Field(description="Peer to kind of bad input to count.")
    alerts: list[AlertShort]


class Peer(Model):
    """One other site, as far as this daemon knows."""

    peer_id: str
    addresses: list[str]
    is_known: bool
    is_live: bool
    took_part_last_round: bool
    membership: str
    state: str
    height: Count
    rounds_behind: int = Field(description="Our height minus theirs; negative: we are behind.")
    chain_head: Hex
    state_digest: Hex
    last_seen_s: Seconds
    step_seconds: Seconds | None
    bandwidth_bytes_per_s: Count = Field(description="Upload bandwidth that the peer itself reports.")
    link_bytes_per_s: Annotated[float, Field(ge=0)] | None = Field(
        description="Measured by us when we sent it payloads; null before the first."
    )
    incarnation: Count


class Contributor(Model):
    """One site's share of a round."""

    peer: str
    phase: Count
    tokens: Count
    inner_steps: Count
    base_round: Count


class RoundTimes(Model):
    """Durations of the parts of a round; 0 where this site had no part in it."""

    gather_s: Seconds
    exchange_s: Seconds
    vote_s: Seconds
    persist_s: Seconds
    apply_s: Seconds
    form_s: Seconds
    reduce_s: Seconds


class RoundRow(Model):
    """One round as this site saw it; times are 0 before they happen."""

    round: Count
    attempts: Count
    coordinator: str
    contributors: list[Contributor]
    is_contributor: bool
    entry_hash: Hex
    bytes_sent: Count
    bytes_received: Count
    next_lowrank_r: Count = Field(description="r: low rank of the payloads after this round; 0 is none.")
    next_inner_steps: Count = Field(description="H: inner steps of a phase after this round.")
    trainer_idle_s: Seconds
    started_at: Unix
    committed_at: Unix
    applied_at: Unix
    times: RoundTimes
    failures: list[str]


LossPoint = Annotated[list[float | None], Field(min_length=3, max_length=3)]


class LossCurves(Model):
    """Points are [unix seconds, global inner step or round, loss]; a loss that is no number is null."""

    inner: list[LossPoint]
    validation: list[LossPoint]


class Span(Model):
    """A stretch of time."""

    kind: Literal["compute", "exchange", "idle", "apply"]
    start: Unix
    end: Unix
    round: Count


class SiteSpan(Model):
    """A stretch of time of one site."""

    kind: str = Field(
        description="compute, idle, exchange, apply, phase (this site); exchange, or what the peer says it does"
        " (training, catching_up, joining, leaving, left), or silent (other sites)."
    )
    start: Unix
    end: Unix
    round: Count | None = None


class SiteTimeline(Model):
    """What one site did."""

    peer_id: str
    is_self: bool
    spans: list[SiteSpan]


class SwarmTimeline(Model):
    """GET /v1/timeline/sites."""

    start: Unix
    end: Unix
    sites: list[SiteTimeline]


class LogEntry(Model):
    """A committed entry of the log."""

    round: Count
    entry_hash: Hex
    parent: Hex
    state_digest: Hex
    contributors: list[Contributor]
    votes: list[str]
    lowrank_r: Count
    next_lowrank_r: Count
    next_inner_steps: Count
    written_at: Unix
    payload_bytes: Count | None = Field(description="null: dropped by retention, or never fetched.")


class Snapshot(Model):
    """A snapshot on this site's disk."""

    round: Count
    total_bytes: Count
    anchor_sha256: Hex
    state_digest: Hex
    chain_head: Hex
    files: list[str]


class Config(Model):
    """The resolved configuration; secrets are masked."""

    run_id: str
    run_directory: str
    run: dict[str, Any] = Field(description="run.toml with all defaults.")
    site: dict[str, Any] = Field(description="site.toml with all defaults.")
    warnings: list[str]


class Done(Model):
    """A control request was carried out."""

    ok: Literal[True]
    text: str


class Tried(Model):
    """One address that a peer tried."""

    address: str
    ok: bool
    error: str


class Reach(Model):
    """Whether others can connect to this site, as one of them found out just now."""

    peer: str = Field(description="Who tried.")
    addresses: list[Tried]


class PauseRequest(Model):
    """Why the trainers pause."""

    reason: Annotated[str, Field(min_length=1, max_length=200)] = "asked for over the API"


class LogLevelRequest(Model):
    """Least severity of events on stderr or in the journal."""

    level: Literal["debug", "info", "warning", "error"]


class Empty(Model):
    """No fields."""
