"""Gives p2pd up at its third death, which else would take minutes."""

from dilocoxd.swarm.p2pd import supervisor


def apply() -> None:
    """In this process."""
    supervisor.RESTARTS_MAX = 2  # type: ignore[misc]
