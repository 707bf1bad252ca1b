"""Opens and closes the API's listening socket."""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from dilocoxd.api.app import View, create_api
from dilocoxd.errors import ConfigError


@contextlib.asynccontextmanager
async def serve_api(view: View, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Serves until the block ends; yields the address really bound (port 0 = any free one).

    Raises ConfigError when the address cannot be bound.
    """
    runner = web.AppRunner(create_api(view), access_log=None, keepalive_timeout=15.0, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"the HTTP API cannot listen on {host} port {port} ({error.strerror or error}); "
                "choose another port in site.toml or stop the other program"
            ) from error
        bound = runner.addresses[0]
        yield str(bound[0]), int(bound[1])
    finally:
        await runner.cleanup()
