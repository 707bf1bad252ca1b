"""Without rule R5.6: whoever is alone with us, or agrees with another one, may be in any attempt."""

from dilocoxd.machines.peers import readiness


def apply() -> None:
    """There is no end."""
    readiness.JUMPS_END = 2**31  # type: ignore[assignment, misc]
