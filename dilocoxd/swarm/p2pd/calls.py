"""Calls of the DHT as hivemind keeps them, without those that are over.

hivemind forgets the task of a call that came only where it was not cancelled, and a caller that takes its call back
cancels it: each left a task, with the request that it was given. It tells the end of a call of ours to a future that
may be over by then, and the task that reads all answers dies of that.
"""

import asyncio
from typing import Any
from uuid import UUID


class IncomingCalls(dict[UUID, asyncio.Task[Any]]):
    """Tasks by call; one that is over, however it ended, is not in it."""

    def __setitem__(self, call: UUID, task: asyncio.Task[Any]) -> None:
        super().__setitem__(call, task)
        task.add_done_callback(lambda done: self.pop(call, None))


class OwnCalls(dict[UUID, asyncio.Future[Any]]):
    """Futures by call; nothing is told to one that is over."""

    def __contains__(self, call: object) -> bool:
        return super().__contains__(call) and not self[call].done()  # type: ignore[index]


def keep_calls(p2p: Any) -> None:
    """From now on, for a `p2p` that was just made."""
    control = p2p._client.control
    control._handler_tasks = IncomingCalls(control._handler_tasks)
    control._pending_calls = OwnCalls(control._pending_calls)
