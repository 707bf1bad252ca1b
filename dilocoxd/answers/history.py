"""GET /v1/losses, /v1/timeline and /v1/timeline/sites: what was, as far as it is kept in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from dilocoxd.answers.fields import NAME_TOLD, Count, LossPoint, Unix, told

OwnKind = Literal["compute", "exchange", "idle", "apply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLosses:
    """Inner losses of one other site: [unix seconds of the entry, round, mean loss of the phase that went into it]."""

    peer_id: str
    name: Annotated[str, told(NAME_TOLD)]
    points: Annotated[Sequence[LossPoint], told("As the site itself says; older ones are means of neighbours.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurves:
    """Points are [unix seconds, global inner step or round, loss]; a loss that is no number is null."""

    inner: Annotated[Sequence[LossPoint], told("Of this site, by inner step.")]
    validation: Annotated[Sequence[LossPoint], told("Of the shared model, by round.")]
    sites: Annotated[
        Sequence[SiteLosses], told("Of the other sites that tell theirs; a claim that nobody can check.")
    ] = ()


@dataclass(slots=True)
class SiteSpan:
    """A stretch of time of one site. The newest one grows."""

    kind: Annotated[
        str,
        told(
            "compute, idle, exchange, apply, phase (this site); exchange, or what the peer says it does (training,"
            " preparing, paused, halted, catching_up, joining, leaving, left), or silent (other sites)."
        ),
    ]
    start: Unix
    end: Unix
    round: Count | None


@dataclass(slots=True)
class OwnSpan(SiteSpan):
    """A stretch of time of this site."""

    kind: OwnKind
    round: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteTimeline:
    """What one site did."""

    peer_id: str
    name: Annotated[str, told(NAME_TOLD)]
    is_self: bool
    spans: Sequence[SiteSpan]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmTimeline:
    """GET /v1/timeline/sites."""

    start: Unix
    end: Unix
    sites: tuple[SiteTimeline, ...]
