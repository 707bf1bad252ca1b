"""Process of a daemon that is told to end once its API is there, before any part of it has begun: `... RUN_DIR`."""

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from dilocoxd.api.server import serve_api
from dilocoxd.config.api import ApiSection
from dilocoxd.daemon.app import run_daemon
from dilocoxd.daemon.control import DaemonControl
from dilocoxd.daemon.observe.view import DaemonView


@contextlib.asynccontextmanager
async def serve_and_stop(
    view: DaemonView, control: DaemonControl, api: ApiSection, token: str
) -> AsyncIterator[tuple[str, int]]:
    """The API; leaves as who asks over it at once."""
    async with serve_api(view, control, api, token) as address:
        control.leave()
        yield address


if __name__ == "__main__":
    sys.exit(run_daemon(Path(sys.argv[1]), serve_and_stop))
