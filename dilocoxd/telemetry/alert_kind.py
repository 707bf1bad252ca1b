"""What is known of one kind of alert. The table of all of them is telemetry/alerts.py."""

from dataclasses import dataclass

from dilocoxd.answers.fields import Severity


@dataclass(frozen=True, slots=True)
class AlertKind:
    """One alert. `expr` empty: the rule is `dilocoxd_alert{code=...} == 1`."""

    code: str
    severity: Severity
    summary: str
    """What it means, for people."""
    condition: str
    """When it is raised and when it goes, in one sentence."""
    cause: str
    remedy: str
    for_s: int = 0
    """How long it must stand before Prometheus tells."""
    expr: str = ""
    """Rule of its own, for what a daemon cannot say about itself."""
