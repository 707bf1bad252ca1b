"""What the loop tells of and nobody waits for: an end of a TLS connection is no fault, all else is one.

uvloop writes what TLS still has to say, such as the last part of a handshake, also when the connection has been closed
meanwhile, and takes that for a fatal error of the program. It is the end of a connection like any other: whoever uses
it is told so by its own read or write.
"""

import asyncio
import logging
from typing import Any, Final

log = logging.getLogger(__name__)

CLOSED: Final = "the handler is closed"
"""uvloop's words for a transport that is closed (handles/handle.pyx)."""
TLS_PROTOCOL: Final = "SSLProtocol"


def is_end_of_connection(error: object, protocol: object) -> bool:
    """Whether what a loop's exception handler is given says only that a TLS connection is over."""
    return isinstance(error, RuntimeError) and CLOSED in str(error) and type(protocol).__name__ == TLS_PROTOCOL


def tell_faults(loop: asyncio.AbstractEventLoop) -> None:
    """From now on `loop` tells faults as it always does, and ends of TLS connections at debug."""

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if is_end_of_connection(context.get("exception"), context.get("protocol")):
            log.debug("a TLS connection was closed while it was written to: %s", context["exception"])
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(tell)
