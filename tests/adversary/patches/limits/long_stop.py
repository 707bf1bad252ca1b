"""A daemon that may take ten minutes to stop, for tests that hold it in the middle of that."""

from typing import Final

from dilocoxd.daemon import app

LIMIT_S: Final = 600.0


def apply() -> None:
    """Of the whole stop, and of a loop that does not come back."""
    app.STOP_LIMIT_S, app.BLOCKED_LIMIT_S = LIMIT_S, LIMIT_S + 1.0  # type: ignore[misc]
