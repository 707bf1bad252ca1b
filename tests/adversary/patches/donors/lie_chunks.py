"""Gives wrong bytes for the files of every snapshot while `wrong-chunks` is in the working directory (TRUST H4)."""

import os
from dataclasses import replace
from pathlib import Path

from dilocoxd.swarm.streams.fetch import FetchServer, Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import FrameStream
from dilocoxd.wire.messages import Fetch

SWITCH = "wrong-chunks"


def apply() -> None:
    """Ones in place of what the file holds."""
    honest, switch = FetchServer._send, Path(SWITCH).absolute()

    async def send(self: FetchServer, stream: FrameStream, request: Fetch, served: Served) -> None:
        if not request.resource.endswith(".safetensors") or not switch.exists():
            await honest(self, stream, request, served)
            return
        fd = os.memfd_create("wrong", os.MFD_CLOEXEC)
        try:
            os.write(fd, b"\1" * served.region.length)
            await honest(self, stream, request, replace(served, region=Region(fd, 0, served.region.length)))
        finally:
            os.close(fd)

    FetchServer._send = send  # type: ignore[method-assign]
