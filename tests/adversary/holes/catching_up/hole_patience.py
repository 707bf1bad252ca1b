"""Without the limits of S3, L13 and L16 on answers that come slowly, but for the longest of all."""

from dilocoxd.daemon.recovery import driver, questions, snapshot_fetch
from dilocoxd.swarm.streams import ends

FOR_EVER_S = 1e9


def apply() -> None:
    """What makes progress is waited for."""
    ends.FRAME_BYTES_PER_S_MIN = ends.DATA_BYTES_PER_S_MIN = 1 / FOR_EVER_S  # type: ignore[misc,assignment]
    snapshot_fetch.ANSWER_S = FOR_EVER_S  # type: ignore[misc]
    questions.START_S = FOR_EVER_S  # type: ignore[misc]
    for name in ("late_factor", "late_first_s"):
        object.__setattr__(driver.LIMITS, name, FOR_EVER_S)
