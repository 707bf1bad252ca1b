"""A budget of exchanges that bring nothing that is used up in moments, as the real one is in a minute."""

from dilocoxd.swarm.streams import budget
from dilocoxd.swarm.streams.budget import Rate

PER_S, BURST = 4.0, 64.0


def apply() -> None:
    """Of one peer."""
    budget.EMPTY_EACH = Rate(PER_S, BURST)  # type: ignore[misc]
