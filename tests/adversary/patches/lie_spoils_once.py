"""Contributes its first pseudo-gradient times 10^12, and is honest from then on (ADR 31)."""

from tests.adversary.patches.lie_scaled import scale_contributions


def apply() -> None:
    """One contribution."""
    scale_contributions(1e12, count=1)
