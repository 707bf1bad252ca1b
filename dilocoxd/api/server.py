"""Serves the API while a block runs; this is what the daemon is started with."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from aiohttp import web

from dilocoxd.api.app import Api
from dilocoxd.api.connections import listening
from dilocoxd.api.http_log import SERVER_LOG
from dilocoxd.api.interface import Control, View
from dilocoxd.api.settings import ApiSettings
from dilocoxd.config.api import ApiSection

TICK_S: Final = 1.0


@contextlib.asynccontextmanager
async def serve_api(
    view: View, control: Control, section: ApiSection, token: str = ""
) -> AsyncIterator[tuple[str, int]]:
    """Serves until the block ends; yields the address really bound (port 0 = any free one).

    Raises ConfigError when the address cannot be bound or the certificate cannot be used.
    """
    api = Api(view, control, ApiSettings(section, token))
    runner = web.AppRunner(api.app, access_log=None, logger=SERVER_LOG, keepalive_timeout=15.0, shutdown_timeout=1.0)
    await runner.setup()
    api.connections.server = runner.server
    try:
        async with listening(api.connections, section) as bound:
            with ticking(api.connections.look), ticking(api.stream.tell_status):
                yield bound
            api.stream.close()
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def ticking(look: Callable[[], None]) -> Iterator[None]:
    """Calls `look` about once a second on the loop until the block ends."""
    loop = asyncio.get_running_loop()

    next_tick: list[asyncio.TimerHandle] = []

    def tick() -> None:
        next_tick[:] = [loop.call_later(TICK_S, tick)]
        look()

    next_tick.append(loop.call_later(TICK_S, tick))
    try:
        yield
    finally:
        next_tick[0].cancel()
