"""GET /v1/rounds and /v1/log: what was decided, and how this site saw it come about."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from dilocoxd.answers.fields import Count, Hex, Seconds, Unix, told


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """One site's share of a round."""

    peer: str
    phase: Count
    tokens: Count
    inner_steps: Count
    base_round: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """Durations of the parts of a round as this site saw them; null: it did not see that part."""

    gather_s: Seconds | None = None
    exchange_s: Seconds | None = None
    vote_s: Seconds | None = None
    persist_s: Seconds | None = None
    apply_s: Seconds | None = None
    form_s: Seconds | None = None
    reduce_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One round as this site saw it; times are 0 before they happen.

    null is not known: decided without this site, or in an earlier life of which the event log does not tell."""

    round: Count
    attempts: Count | None = None
    coordinator: str = ""
    contributors: tuple[Contributor, ...] = ()
    is_contributor: bool = False
    entry_hash: Hex = ""
    bytes_sent: Count | None = None
    bytes_received: Count | None = None
    next_lowrank_r: Annotated[Count, told("r: low rank of the payloads after this round; 0 is none.")] = 0
    next_inner_steps: Annotated[Count, told("H: inner steps of a phase after this round.")] = 0
    trainer_idle_s: Seconds | None = None
    started_at: Unix = 0.0
    committed_at: Unix = 0.0
    applied_at: Unix = 0.0
    times: RoundTimes = field(default_factory=RoundTimes)
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """A committed entry of the log."""

    round: Count
    entry_hash: Hex
    parent: Hex
    state_digest: Hex
    contributors: tuple[Contributor, ...]
    votes: tuple[str, ...]
    lowrank_r: Count
    next_lowrank_r: Count
    next_inner_steps: Count
    voted_at: Annotated[Unix, told("median of the times of its votes.")]
    payload_bytes: Annotated[Count | None, told("null: dropped by retention, or never fetched.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundColumns:
    """Committed rounds, ascending, one list for each figure: what charts need, without names. null: not known."""

    round: Sequence[Count]
    committed_at: Sequence[Unix]
    contributors: Sequence[Count]
    tokens: Sequence[Count]
    attempts: Sequence[Count | None]
    bytes_sent: Sequence[Count | None]
    bytes_received: Sequence[Count | None]
    exchange_s: Sequence[Seconds | None]
    trainer_idle_s: Sequence[Seconds | None]
    next_inner_steps: Sequence[Count]
    next_lowrank_r: Sequence[Count]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteShare:
    """What one site gave to some rounds."""

    peer_id: str
    tokens: Annotated[Sequence[Count], told("For each of the rounds; 0: it had no part in it.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Participation:
    """Who took part in the newest committed rounds, ascending."""

    rounds: Sequence[Count]
    sites: Sequence[SiteShare]
