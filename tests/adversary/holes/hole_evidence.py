"""Without rule R27: whoever votes twice in an attempt is never proved to."""

from dilocoxd.machines.peers.double_votes import DoubleVotes


def apply() -> None:
    """No two votes contradict each other."""
    DoubleVotes.saw = lambda self, chain, what, vote: False  # type: ignore[method-assign]
