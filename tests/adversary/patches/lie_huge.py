"""Contributes its pseudo-gradient times a million, with the wrong sign (TRUST C4)."""

from tests.adversary.patches.lie_scaled import scale_contributions


def apply() -> None:
    """Every contribution."""
    scale_contributions(-1e6)
