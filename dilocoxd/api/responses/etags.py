"""Decides how long an encoded answer is kept for the next poller, and gives it an entity tag.

Many pollers cost one encoding; a poller that already has the answer gets 304 without a body.
"""

import asyncio
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from aiohttp import web

from dilocoxd.answers.status import Status
from dilocoxd.api.responses.encoding import encoded, encoded_in_steps

KEPT_S: Final = 0.2
KEPT_BODIES: Final = 64
KEPT_BYTES: Final = 2 << 20
PACKED_FROM_BYTES: Final = 1500
"""Shorter answers fit into one packet anyway."""
GZIP_LEVEL: Final = 5
GZIP_MAGIC: Final = b"\x1f\x8b"
"""JSON never begins like this."""


def entity_tag(value: object, body: bytes) -> str:
    """Weak tag: equal while nothing but the age of the daemon changes."""
    if isinstance(value, Status):
        body = encoded(replace(value, uptime_s=0.0))
    return f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def takes_gzip(accept_encoding: str) -> bool:
    """Whether a client that sends this header understands gzip.

    >>> takes_gzip("gzip, deflate, br"), takes_gzip("gzip;q=0, br"), takes_gzip("")
    (True, False, False)
    """
    for one in accept_encoding.lower().split(","):
        name, _, quality = one.partition(";")
        if name.strip() in ("gzip", "x-gzip"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class BodyCache:
    """Encoded answers of the last moment, by path and query."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, bytes, str]] = OrderedDict()
        self._bytes = 0

    async def answer(
        self, request: web.Request, make: Callable[[], Awaitable[object]], headers: dict[str, str] | None = None
    ) -> web.Response:
        """200 with the value that `make` gives, or 304 if the client has it already."""
        is_packed = takes_gzip(request.headers.get("Accept-Encoding", ""))
        body, tag = await self._fresh(request.path_qs, make, is_packed)
        shown = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding", **(headers or {})}
        known = [one.strip() for one in request.headers.get("If-None-Match", "").split(",")]
        if tag in known or tag.removeprefix("W/") in known:
            return web.Response(status=304, headers=shown)
        if body.startswith(GZIP_MAGIC):
            shown["Content-Encoding"] = "gzip"
        return web.Response(body=body, content_type="application/json", headers=shown)

    def clear(self) -> None:
        """What was kept may be wrong now."""
        self._kept.clear()
        self._bytes = 0

    async def _fresh(self, path: str, make: Callable[[], Awaitable[object]], is_packed: bool) -> tuple[bytes, str]:
        clock = asyncio.get_running_loop().time
        key = f"gzip {path}" if is_packed else path
        kept = self._kept.get(key)
        if kept is not None and kept[0] >= clock():
            return kept[1:]
        value = await make()
        body = await encoded_in_steps(value)
        tag = entity_tag(value, body)
        if is_packed and len(body) >= PACKED_FROM_BYTES:
            body = await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL, mtime=0)
        self._forget(key)
        self._kept[key] = (clock() + KEPT_S, body, tag)
        self._bytes += len(body)
        while len(self._kept) > KEPT_BODIES or (self._bytes > KEPT_BYTES and self._kept):
            self._forget(next(iter(self._kept)))
        return body, tag

    def _forget(self, key: str) -> None:
        old = self._kept.pop(key, None)
        self._bytes -= len(old[1]) if old is not None else 0
