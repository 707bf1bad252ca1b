"""How p2pd runs as a process: in a session of its own, its control sockets in our folder, its words in logs/p2pd.log.

hivemind starts p2pd in the session of its caller and shows what it says on our screen. Ctrl-C in a terminal then ends
p2pd before we have said goodbye, and Go's complaints about that stand between the lines of the daemon.
"""

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.fence import DhtFence

Handler = Callable[[Any, Any], Awaitable[Any]]
LOG_BYTES_MAX: Final = 4 << 20
_OWN_SESSION: Final = "import os, sys; os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
"""Python without site-packages, so that it costs 10 ms; the pid stays the same."""


def p2pd_log(path: Path | None) -> logging.Logger:
    """Where p2pd's lines go: `path`, bounded, with one older file; None: nowhere."""
    logger = logging.Logger("p2pd")
    if path is None:
        logger.addHandler(logging.NullHandler())
        return logger
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


@dataclass(frozen=True, slots=True)
class P2pdChanges:
    """What differs from a p2pd as hivemind runs it."""

    socket_dir: Path
    """Of its control sockets."""
    log: logging.Logger
    arguments: Mapping[str, int]
    """Flags of p2pd that hivemind does not set."""
    fenced: Callable[[Handler], Handler]
    """Makes of a DHT handler one that is asked only what it may be asked."""


def p2pd_class(base: Any, around: P2pdChanges, begun: list[Any]) -> Any:
    """`base` (hivemind's P2P) with the differences of this file; every object that is made is added to `begun`."""

    class LocalP2P(base):  # type: ignore[misc]  # hivemind is untyped
        _UNIX_SOCKET_PREFIX = f"/unix{around.socket_dir}/"

        def __init__(self) -> None:
            super().__init__()
            begun.append(self)

        @staticmethod
        def _make_process_args(*args: Any, **kwargs: Any) -> list[str]:
            made = base._make_process_args(*args, **around.arguments, **kwargs)
            return [sys.executable, "-I", "-S", "-c", _OWN_SESSION, *made]

        @staticmethod
        def _log_p2pd_message(line: str) -> None:
            around.log.warning("%s", line)

        async def add_protobuf_handler(self, name: str, handler: Handler, kind: Any, **kwargs: Any) -> None:
            await super().add_protobuf_handler(name, around.fenced(handler), kind, **kwargs)

    return LocalP2P


def fenced(handler: Handler, fence: DhtFence, count_bad: Callable[[str], None]) -> Handler:
    """A DHT handler that is asked only what the fence lets through; what it does not is counted."""

    async def handle(request: Any, context: Any) -> Any:
        try:
            fence.check(PeerId(context.remote_id.to_base58()), request)
        except WireError as error:
            count_bad(error.code)
            raise
        return await handler(request, context)

    return handle


def hear_failures(p2p: Any) -> None:
    """Take note of how the tasks between us and a p2pd that is gone ended: nobody awaits them, and asyncio would print
    the end of their connection as a bug of ours."""
    client = p2p._client
    for task in (client.control._read_task, client.control._write_task) if client is not None else ():
        if task is not None and task.done() and not task.cancelled():
            task.exception()
