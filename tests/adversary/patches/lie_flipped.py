"""Contributes its pseudo-gradient with the wrong sign and nothing else changed: no norm gives it away."""

from tests.adversary.patches.lie_scaled import scale_contributions


def apply() -> None:
    """Every contribution."""
    scale_contributions(-1.0)
