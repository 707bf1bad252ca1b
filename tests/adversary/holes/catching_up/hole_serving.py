"""Without the budgets of rule S10 for what is looked up for others."""

from typing import Any

from dilocoxd.daemon.peers.serving import Library


def apply() -> None:
    """It is charged to nobody."""

    async def charge(self: Library, *_: Any) -> None:
        return

    Library._charge = charge  # type: ignore[method-assign]
