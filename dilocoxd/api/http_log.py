"""What the HTTP library says of requests: those that it cannot read are the caller's fault, and no news of ours."""

import logging
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

log = logging.getLogger(__name__)

_CLIENTS_FAULT_BELOW: Final = 500


def is_of_the_client(error: BaseException | None) -> bool:
    """Whether `error` says that bytes which somebody sent are no request, or that its body ended or cannot be read."""
    if isinstance(error, HttpProcessingError):
        return error.code < _CLIENTS_FAULT_BELOW
    return isinstance(error, web.RequestPayloadError | ConnectionError)


class _OfClients(logging.Filter):
    """aiohttp tells each as an error with its stack, so that a port scanner fills the terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not is_of_the_client(error):
            return True
        log.debug("a request was refused: %s", error)
        return False


SERVER_LOG: Final = logging.getLogger(f"{__name__}.server")
SERVER_LOG.addFilter(_OfClients())
