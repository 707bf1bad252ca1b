"""Without rule R12.3: who failed with whom is forgotten at once."""

from dilocoxd.machines.peers.conflicts import Conflicts


def apply() -> None:
    """Nobody is kept out of a group for what it did not bring."""
    Conflicts.pairs = lambda self, round_index: frozenset()  # type: ignore[method-assign]
