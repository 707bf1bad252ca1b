"""Without rule R25: an entry may name whom it likes, whether or not they offered that."""

from dilocoxd.machines.limits import VoteKeys


def apply() -> None:
    """Every contribution was offered."""
    VoteKeys.is_offered = lambda self, contribution, offer: True  # type: ignore[method-assign]
