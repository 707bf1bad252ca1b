"""GET /v1/alerts, and what /v1/status says of the same alerts."""

from dataclasses import dataclass
from typing import Annotated

from dilocoxd.answers.fields import Severity, Unix, told


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingAlert:
    """An alert that stands now: what the operator should know, with what can be done about it."""

    code: str
    severity: Severity
    text: str
    remedy: str
    since: Unix


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAlert:
    """An alert that stood once, in this or an earlier life of the daemon."""

    code: str
    severity: Severity
    text: str
    since: Unix
    cleared_at: Annotated[Unix | None, told("null: the daemon ended while it stood.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedAlert(StandingAlert):
    """An alert that stands now, with its entry of the runbook."""

    summary: Annotated[str, told("What this kind of alert means, in plain words.")]
    cause: str
    runbook: Annotated[str, told("Anchor in docs/operations/runbook.md.")]
