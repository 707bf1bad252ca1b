"""Shows the site whose peer id is in SHOWN_TO the membership in SECOND (hex), and all others its own."""

import os
from dataclasses import replace
from typing import Any

from dilocoxd.swarm.streams.streams import FrameStream
from dilocoxd.wire.frames import FrameKind
from dilocoxd.wire.messages import PEER_MESSAGES, Hello


def apply() -> None:
    """In each HELLO."""
    honest, shown_to, second = FrameStream.write, os.environ["SHOWN_TO"], bytes.fromhex(os.environ["SECOND"])

    async def write(self: FrameStream, kind: FrameKind, *parts: Any) -> None:
        if kind is FrameKind.HELLO and self.peer == shown_to:
            hello = PEER_MESSAGES.decode(b"".join(parts))
            if isinstance(hello, Hello) and hello.membership:
                parts = (PEER_MESSAGES.encode(replace(hello, membership=second)),)
        await honest(self, kind, *parts)

    FrameStream.write = write  # type: ignore[method-assign]
