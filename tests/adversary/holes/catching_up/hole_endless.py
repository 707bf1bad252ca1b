"""Without R22.6: whoever claims a tip may show its branch for as long as it likes."""

from dilocoxd.machines.peers.tips import Tips


def apply() -> None:
    """Nobody has a deadline."""
    Tips.patience_s = lambda self, chain: {}  # type: ignore[method-assign]
