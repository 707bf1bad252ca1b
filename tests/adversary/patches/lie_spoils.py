"""Contributes a pseudo-gradient as large as can be: finite, and no model gives a finite loss with it (ADR 31)."""

from tests.adversary.patches.lie_scaled import blow_up_contributions


def apply() -> None:
    """Every contribution."""
    blow_up_contributions()
