"""Contributes its first pseudo-gradient as large as can be, and is honest from then on (ADR 31)."""

from tests.adversary.patches.lie_scaled import blow_up_contributions


def apply() -> None:
    """One contribution."""
    blow_up_contributions(count=1)
