"""Without rule R12.13: each segment that comes is progress, however few bring the last ones."""

from dilocoxd.machines.round import exchanging

FOR_EVER_S = 1e9


def apply() -> None:
    """Whoever brings something in time is waited for."""
    exchanging.FEW_TIMEOUTS = FOR_EVER_S  # type: ignore[misc]
