"""Moves events to clients as server-sent events: resumable by id, kept alive, and never waited for.

Every client has a bounded queue. One that reads too slowly loses its connection, not the daemon's time or memory; it
comes back with Last-Event-ID and gets what it missed, or `reset` when that is no longer kept (then it reads the state
anew). Three kinds of messages: `event` (docs/events.md), `status` (GET /v1/status, when it changed), `reset`.
Source: WHATWG HTML, server-sent events.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from aiohttp import web

from dilocoxd.answers.status import Status
from dilocoxd.api.responses.encoding import encoded
from dilocoxd.api.responses.problems import ProblemError, bad_request

HISTORY: Final = 2000
QUEUE_MAX: Final = 500
KEEP_ALIVE_S: Final = 10.0
WRITE_S: Final = 10.0
RETRY_MS: Final = 2000
_END: Final = b""


def message(kind: str, data: bytes, ident: str = "") -> bytes:
    """One message as it travels; `data` has no line breaks (JSON)."""
    head = f"id: {ident}\n" if ident else ""
    return f"{head}event: {kind}\ndata: ".encode("ascii") + data + b"\n\n"


class Client:
    """Messages that one connection has not sent yet."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_MAX)
        self.is_lost = False

    def put(self, data: bytes) -> None:
        """Queue it; a client that is too far behind is cut off."""
        if self._queue.full():
            self.is_lost = True
            return
        self._queue.put_nowait(data)

    def finish(self) -> None:
        """No more messages."""
        self.is_lost = True
        if not self._queue.full():
            self._queue.put_nowait(_END)

    async def next(self) -> bytes:
        """The next message, or a keep-alive comment."""
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                return await self._queue.get()
        except TimeoutError:
            return b": keep-alive\n\n"


class EventStream:
    """All clients of /v1/events."""

    def __init__(self, status: Callable[[], Status], clients_max: int) -> None:
        self._status = status
        self._clients_max = clients_max
        self._clients: set[Client] = set()
        self._life = f"{time.time_ns() // 1_000_000:x}"
        self._number = 0
        self._history: deque[tuple[int, bytes]] = deque(maxlen=HISTORY)
        self._last_status: Status | None = None
        self.num_cut_off = 0

    def on_event(self, record: dict[str, object]) -> None:
        """Every event of the daemon; never blocks."""
        self._number += 1
        data = message("event", encoded(record), f"{self._life}-{self._number}")
        self._history.append((self._number, data))
        for client in self._clients:
            client.put(data)

    def tell_status(self) -> None:
        """About once a second: what /v1/status shows, if it changed and anybody listens."""
        if not self._clients:
            return
        status = self._status()
        comparable = replace(status, uptime_s=0.0)
        if comparable != self._last_status:
            self._last_status = comparable
            data = message("status", encoded(status))
            for client in self._clients:
                client.put(data)

    def close(self) -> None:
        """End all streams: the daemon stops."""
        for client in self._clients:
            client.finish()

    def missed(self, last_id: str) -> list[bytes]:
        """What a client that saw `last_id` last must be told first."""
        life, _, number = last_id.partition("-")
        if not (last_id.isascii() and life.isalnum() and number.isdecimal() and len(last_id) <= 40):
            raise bad_request(f"Last-Event-ID {last_id[:40]!r} is none of ours; leave it out")
        seen = int(number)
        oldest = self._history[0][0] if self._history else self._number + 1
        if life != self._life or seen > self._number or seen + 1 < oldest:
            return [message("reset", b"{}", f"{self._life}-{self._number}")]
        return [data for index, data in self._history if index > seen]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/events."""
        if len(self._clients) >= self._clients_max:
            raise ProblemError(
                503,
                "Service Unavailable",
                f"{self._clients_max} event streams are open; close one, or raise api.streams_max in site.toml",
                {"Retry-After": "5"},
            )
        last_id = request.headers.get("Last-Event-ID") or request.query.get("last_event_id", "")
        first = self.missed(last_id) if last_id else [message("reset", b"{}", f"{self._life}-{self._number}")]
        client = Client()
        self._clients.add(client)  # before anything is awaited: nothing falls between `missed` and the queue
        try:
            return await self._pump(request, client, first)
        finally:
            self._clients.discard(client)

    async def _pump(self, request: web.Request, client: Client, first: list[bytes]) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        status = message("status", encoded(self._status()))
        try:
            await self._write(response, f"retry: {RETRY_MS}\n\n".encode("ascii") + b"".join(first) + status)
            while not client.is_lost:
                data = await client.next()
                if data == _END:
                    break
                await self._write(response, data)
            await self._write(response, b"")
        except (TimeoutError, ConnectionError):
            self._cut_off(request)
        else:
            if client.is_lost:
                self._cut_off(request)
        return response

    @staticmethod
    async def _write(response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(WRITE_S):
            await response.write(data)

    def _cut_off(self, request: web.Request) -> None:
        self.num_cut_off += 1
        with contextlib.suppress(AttributeError):
            if request.transport is not None:
                request.transport.abort()
