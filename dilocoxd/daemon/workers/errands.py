"""What the node of an outer part does beside its requests: sends payloads to other sites (wire/local/uploads.py).

They are numbered apart from requests and may take long, so neither the silence nor the life of a part is measured by
them.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any, Final

from dilocoxd.errors import WireError, WorkerError
from dilocoxd.wire.local.inlets import FROM_INLET
from dilocoxd.wire.local.uploads import PayloadSent, PayloadsMove, SendPayload, StopPayload, UploadKey, UploadWay

SILENCE_S: Final = 20.0
"""Without a word of payloads under way: whoever waits for one does not go on waiting."""
EACH_MAX: Final = 16
"""Under way to one site: one that has stalled keeps few places from the others."""
ALL_MAX: Final = 192
"""Orders that the node has not answered: they, and what calls them off, wait in a queue that ends the connection when
it is full. One that is called off counts until the node says that it has heard so."""


class Errands:
    """Of one connection; over with it."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self.send = send
        """Tells the node something, behind all that its part was asked before."""
        self.on_told: Callable[[UploadKey | UploadWay], None] = lambda message: None
        self.on_inlet: Callable[[Any], None] = lambda message: None
        """Likewise of what comes to the node (wire/local/inlets.py)."""
        self._each: dict[str, asyncio.Semaphore] = {}
        self._all = asyncio.Semaphore(ALL_MAX)
        self._pending: dict[int, asyncio.Future[PayloadSent]] = {}
        """Orders without an answer, with those that nobody waits for any more."""
        self._limits: set[asyncio.Timeout] = set()
        """Of all who wait, for an answer or for room."""
        self._number = 0
        self._ended = ""

    async def send_payload(self, order: SendPayload) -> PayloadSent:
        """How it ended. Raises WorkerError when the connection ends or the node says nothing. Who is cancelled calls
        it off."""
        each = self._each.setdefault(order.peer, asyncio.Semaphore(EACH_MAX))
        async with each:
            try:
                async with asyncio.timeout(SILENCE_S) as limit:
                    self._limits.add(limit)
                    await self._all.acquire()
                    return await self._answer(order)
            except TimeoutError as error:
                raise WorkerError(f"the node said nothing of a payload for {SILENCE_S:g} s") from error
            finally:
                self._limits.discard(limit)

    async def _answer(self, order: SendPayload) -> PayloadSent:
        if self._ended:
            self._all.release()
            raise WorkerError(f"the node is gone: {self._ended}")
        self._number += 1
        number = self._number
        future: asyncio.Future[PayloadSent] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            self.send(dataclasses.replace(order, request=number))
            return await future
        finally:
            if future.cancelled():
                self.send(StopPayload(number))

    def on_message(self, message: Any) -> None:
        """Of the node. Raises WireError when it makes no sense."""
        match message:
            case PayloadSent():
                future = self._pending.pop(message.request, None)
                if future is not None:
                    self._all.release()
                    if not future.done():
                        future.set_result(message)
            case PayloadsMove():
                end = asyncio.get_running_loop().time() + SILENCE_S
                for limit in self._limits:
                    if not limit.expired():
                        limit.reschedule(end)
            case UploadKey() | UploadWay():
                self.on_told(message)
            case _ if isinstance(message, FROM_INLET):
                self.on_inlet(message)
            case _:
                raise WireError("unexpected_message", f"{type(message).__name__} from a node")

    def end(self, reason: str) -> None:
        """Nothing more comes."""
        self._ended = self._ended or reason
        pending, self._pending = self._pending, {}
        for future in pending.values():
            self._all.release()  # whoever waits for room hears it too
            if not future.done():
                future.set_exception(WorkerError(f"the node is gone: {reason}"))
