"""A daemon that stops waits for its round as long as workers can finish it, and no longer."""

import asyncio

from dilocoxd.daemon.app import in_words
from dilocoxd.daemon.process.leaving import has_left
from dilocoxd.errors import WorkerError

LONG_S = 1e6
"""Longer than any test may take."""


async def test_round_that_needs_workers_is_not_waited_for_when_they_have_ended_for_good() -> None:
    left, gone = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        site = group.create_task(gone.wait(), name="site")
        waiting = group.create_task(has_left(left, site, LONG_S), name="stop list")
        gone.set()  # while we wait
        assert await waiting is False
    assert await has_left(left, site, LONG_S) is False, "and before"
    left.set()
    assert await has_left(left, site, LONG_S) is True


async def test_round_is_waited_for_while_the_site_runs() -> None:
    left, gone = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        site = group.create_task(gone.wait(), name="site")
        assert await has_left(left, site, 0.01) is False, "up to the limit"
        waiting = group.create_task(has_left(left, site, LONG_S), name="stop list")
        asyncio.get_running_loop().call_soon(left.set)
        assert await waiting is True
        assert not site.done()
        gone.set()


def test_what_several_parts_of_a_node_end_with_is_said_once() -> None:
    ends = [
        WorkerError("its node n2 was started anew"),
        WorkerError("its node n2 was started anew"),
        WorkerError("full"),
    ]
    assert in_words(BaseExceptionGroup("", [ends[0], BaseExceptionGroup("", ends[1:])])) == (
        "its node n2 was started anew; full"
    )
