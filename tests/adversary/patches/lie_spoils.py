"""Contributes its pseudo-gradient times 10^12: finite, and no model gives a finite loss with it (ADR 31)."""

from tests.adversary.patches.lie_scaled import scale_contributions


def apply() -> None:
    """Every contribution."""
    scale_contributions(1e12)
