"""Takes part, offers, accepts and votes, but of what it owes nobody gets a byte."""

import asyncio
from typing import Any

from dilocoxd.daemon.round.transfers import Transfers


def apply() -> None:
    """What it is to send is on its way for ever."""

    async def send(self: Transfers, order: Any) -> None:
        await asyncio.Event().wait()

    Transfers._send = send  # type: ignore[method-assign]
