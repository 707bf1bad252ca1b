"""Decides how JSON leaves: encoded in small steps, kept for a moment for the next poller, with an entity tag.

Many pollers cost one encoding; a poller that already has the answer gets 304 without a body.
"""

import asyncio
import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

KEPT_S: Final = 0.2
KEPT_BODIES: Final = 64
KEPT_BYTES: Final = 2 << 20
ROWS_PER_STEP: Final = 500
"""Rows encoded before the loop may do something else: below 1 ms."""


def finite(value: Any) -> Any:
    """The same value with null in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def encoded(value: Any) -> bytes:
    """JSON of a small value."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("utf-8")
    except ValueError:
        return json.dumps(finite(value), separators=(",", ":")).encode("utf-8")


async def encoded_in_steps(value: Any) -> bytes:
    """JSON of a value whose lists, at the top or one level below, may be long."""
    if isinstance(value, list):
        return await _list(value)
    if isinstance(value, dict) and any(isinstance(v, list) and len(v) > ROWS_PER_STEP for v in value.values()):
        parts = [
            encoded(key) + b":" + (await _list(item) if isinstance(item, list) else encoded(item))
            for key, item in value.items()
        ]
        return b"{" + b",".join(parts) + b"}"
    return encoded(value)


async def _list(rows: list[Any]) -> bytes:
    parts = []
    for start in range(0, len(rows), ROWS_PER_STEP):
        parts.append(encoded(rows[start : start + ROWS_PER_STEP])[1:-1])
        if start + ROWS_PER_STEP < len(rows):
            await asyncio.sleep(0)
    return b"[" + b",".join(part for part in parts if part) + b"]"


def entity_tag(value: Any, body: bytes) -> str:
    """Weak tag: equal while nothing but the age of the daemon changes."""
    if isinstance(value, dict) and "uptime_s" in value:
        body = encoded({**value, "uptime_s": 0})
    return f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


class BodyCache:
    """Encoded answers of the last moment, by path and query."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, bytes, str]] = OrderedDict()
        self._bytes = 0

    async def answer(
        self, request: web.Request, make: Callable[[], Awaitable[Any]], headers: dict[str, str] | None = None
    ) -> web.Response:
        """200 with the value that `make` gives, or 304 if the client has it already."""
        _, body, tag = await self._fresh(request.path_qs, make)
        shown = {"ETag": tag, "Cache-Control": "no-cache", **(headers or {})}
        known = [one.strip() for one in request.headers.get("If-None-Match", "").split(",")]
        if tag in known or tag.removeprefix("W/") in known:
            return web.Response(status=304, headers=shown)
        return web.Response(body=body, content_type="application/json", headers=shown)

    def clear(self) -> None:
        """What was kept may be wrong now."""
        self._kept.clear()
        self._bytes = 0

    async def _fresh(self, key: str, make: Callable[[], Awaitable[Any]]) -> tuple[float, bytes, str]:
        clock = asyncio.get_running_loop().time
        kept = self._kept.get(key)
        if kept is not None and kept[0] >= clock():
            return kept
        value = await make()
        body = await encoded_in_steps(value)
        kept = (clock() + KEPT_S, body, entity_tag(value, body))
        self._forget(key)
        self._kept[key] = kept
        self._bytes += len(body)
        while len(self._kept) > KEPT_BODIES or (self._bytes > KEPT_BYTES and self._kept):
            self._forget(next(iter(self._kept)))
        return kept

    def _forget(self, key: str) -> None:
        old = self._kept.pop(key, None)
        self._bytes -= len(old[1]) if old is not None else 0
