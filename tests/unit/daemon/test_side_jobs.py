"""What nobody needs to train ends without the daemon."""

from __future__ import annotations

import asyncio

import pytest

from dilocoxd.daemon.side_jobs import run_aside
from dilocoxd.errors import PeerError


@pytest.mark.parametrize(
    "error", [OSError("no buffer space"), RuntimeError("no adapter"), ImportError("zeroconf"), PeerError("gone")]
)
async def test_side_job_that_fails_is_told_once_and_the_others_go_on(error: Exception) -> None:
    async def failing() -> None:
        raise error

    said: list[str] = []
    goes_on = asyncio.Event()

    async def other() -> None:
        await task
        goes_on.set()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(run_aside(failing(), "local network", said.append))
        group.create_task(other())
    assert goes_on.is_set()
    assert len(said) == 1 and said[0].startswith(f"local network has ended ({type(error).__name__}: {error})")


async def test_bug_in_a_side_job_and_its_cancellation_are_not_hidden() -> None:
    async def wrong() -> None:
        raise AssertionError("a bug")

    with pytest.raises(AssertionError):
        await run_aside(wrong(), "x", print)
    task = asyncio.create_task(run_aside(asyncio.sleep(60), "x", print))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
