"""Without the limits of S10 on streams, half-sent frames and exchanges that bring nothing."""

from dilocoxd.swarm.streams import budget, room

WITHOUT_END = 1 << 60


def apply() -> None:
    """There is room for everything."""
    limits = room.RoomLimits(*[WITHOUT_END] * 6)
    room.RoomLimits = lambda: limits  # type: ignore[assignment, misc]
    for name in ("EMPTY_EACH", "EMPTY_NETWORK", "EMPTY_TOTAL"):
        setattr(budget, name, budget.Rate(WITHOUT_END, WITHOUT_END))
