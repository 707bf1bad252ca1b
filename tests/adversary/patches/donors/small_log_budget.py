"""Looks its log up for others so seldom that also a machine without much CPU to spare could do it more often."""

from typing import Final

from dilocoxd.daemon.peers import serving
from dilocoxd.swarm.streams.budget import Rate

LOG_EACH: Final = Rate(per_s=0.5, burst=16.0)


def apply() -> None:
    """For each asker."""
    serving.LOG_EACH = LOG_EACH  # type: ignore[misc]
