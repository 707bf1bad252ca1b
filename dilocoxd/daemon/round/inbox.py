"""The round driver's inbox: facts and messages in order, deadlines of the machine among them.

Only `DeadlineReached` lets a deadline pass for the machine, and it comes after all that lay in the inbox when the
deadline had passed: whoever was busy or stood still must not blame others for what it had not read yet (rule R18).
"""

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.round.inputs import DeadlineReached, Event, MessageReceived

PEER_EVENTS_MAX: Final = 1024
"""Messages of peers that wait to be handled; beyond it their streams wait (back-pressure), nothing is dropped."""
EVENTS_OF_ONE_MAX: Final = 64
"""Of these from one peer: who floods waits for itself, and all others find room."""


class _Share:
    """What one peer has of the inbox; it ends with its last message."""

    __slots__ = ("room", "users")

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(EVENTS_OF_ONE_MAX)
        self.users = 0


class RoundInbox:
    """Events of one machine. `next_deadline` is the machine's, in seconds of the loop's clock."""

    def __init__(self, next_deadline: Callable[[], Monotonic | None]) -> None:
        self._next_deadline = next_deadline
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._peer_room = asyncio.Semaphore(PEER_EVENTS_MAX)
        self._own_room: dict[PeerId, _Share] = {}
        """Of peers with a message in the queue, or on its way into it."""
        self._to_read: int | None = None
        """How many events come before the deadline that has passed; None: none has."""

    def tell(self, event: Event) -> None:
        """Queue a fact of our own making; as many as there are orders under way."""
        self._queue.put_nowait(event)

    async def tell_message(self, peer: PeerId, message: Any) -> None:
        """Queue a peer's message; waits while too many wait already."""
        share = self._own_room.setdefault(peer, _Share())
        share.users += 1
        is_in = has_share = False
        try:
            has_share = await share.room.acquire()
            is_in = await self._peer_room.acquire()
        finally:
            if not is_in:  # its stream has ended meanwhile
                if has_share:
                    share.room.release()
                self._leave(peer, share)
        self._queue.put_nowait(MessageReceived(peer, message))

    def _leave(self, peer: PeerId, share: "_Share") -> None:
        share.users -= 1
        if not share.users:
            del self._own_room[peer]

    async def next(self) -> tuple[Event, Monotonic]:
        """The next event, and what time it is for the machine: before its deadline until that itself is the event."""
        clock = asyncio.get_running_loop().time
        while True:
            deadline = self._next_deadline()
            if deadline is not None and deadline <= clock():
                return await self._passed(deadline, Monotonic(clock()))
            self._to_read = None
            try:
                async with asyncio.timeout_at(deadline):
                    event = await self._queue.get()
            except TimeoutError:
                continue
            self._took(event)
            now = Monotonic(clock())
            return event, now if deadline is None or now < deadline else _before(deadline)

    async def _passed(self, deadline: Monotonic, now: Monotonic) -> tuple[Event, Monotonic]:
        """What lay in the inbox when the deadline had passed, then the deadline: neither starves the other."""
        if self._to_read is None:
            await asyncio.sleep(0)  # who stood still finds in its sockets what came meanwhile
            self._to_read = self._queue.qsize()
        if not self._to_read:
            self._to_read = None
            return DeadlineReached(), now
        self._to_read -= 1
        event = self._queue.get_nowait()
        self._took(event)
        return event, _before(deadline)

    def _took(self, event: Event) -> None:
        if isinstance(event, MessageReceived):
            self._peer_room.release()
            share = self._own_room[event.peer]
            share.room.release()
            self._leave(event.peer, share)


def _before(deadline: Monotonic) -> Monotonic:
    """The last moment that is not `deadline` yet."""
    return Monotonic(math.nextafter(deadline, -math.inf))
