"""Events of a site that runs on several machines (docs/cluster.md). Types as in the catalogue."""

from dataclasses import dataclass
from typing import ClassVar

from dilocoxd.telemetry.catalogue import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackMissing(Event):
    """Of so many values no machine had the saved error feedback: it starts at zero, what it held counts for nothing."""

    name: ClassVar[str] = "feedback.missing"
    level: ClassVar[Level] = "warning"
    values: int
    reason: str
