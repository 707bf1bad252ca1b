"""Without the limits of S10 on streams and half-sent frames."""

from dilocoxd.swarm.streams import room

WITHOUT_END = 1 << 60


def apply() -> None:
    """There is room for everything."""
    limits = room.RoomLimits(*[WITHOUT_END] * 6)
    room.RoomLimits = lambda: limits  # type: ignore[assignment, misc]
