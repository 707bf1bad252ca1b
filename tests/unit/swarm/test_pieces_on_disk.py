"""Pieces that a thread writes: the owner of a region may close its descriptor while the thread has not begun, or is
not through, and the next file gets its number."""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from dilocoxd.errors import StoreError
from dilocoxd.store.durable import write_all
from dilocoxd.swarm.streams import pieces
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.frames import PIECE_BYTES

DATA = memoryview(b"x" * PIECE_BYTES)


@contextlib.asynccontextmanager
async def busy_threads() -> AsyncIterator[threading.Event]:
    """The loop's only thread waits until the event is set; at the end it is through with all that it was given."""
    may_go = threading.Event()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(pool)
    pool.submit(may_go.wait, 60)
    try:
        yield may_go
    finally:
        may_go.set()
        pool.shutdown()


async def cancelled_soon(work: Awaitable[object]) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_write_of_a_cancelled_task_is_never_made_and_leaves_no_descriptor(tmp_path: Path) -> None:
    fd = opened(tmp_path / "target")
    async with busy_threads():
        before = descriptors()
        await cancelled_soon(Region(fd, 0, PIECE_BYTES, is_on_disk=True).write_piece(0, DATA))
    assert descriptors() == before
    os.close(fd)
    assert (tmp_path / "target").read_bytes() == b""


async def test_write_under_way_does_not_reach_the_file_that_got_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has begun when the task is cancelled, and writes when the number is another file's."""
    has_begun, may_write = threading.Event(), threading.Event()

    def late(fd: int, data: memoryview, offset: int) -> int:
        has_begun.set()
        assert may_write.wait(60)
        return write_all(fd, data, offset)

    monkeypatch.setattr(pieces, "write_all", late)
    fd = opened(tmp_path / "target")
    task = asyncio.ensure_future(Region(fd, 0, PIECE_BYTES, is_on_disk=True).write_piece(0, DATA))
    assert await asyncio.to_thread(has_begun.wait, 60)
    await cancelled_soon(task)
    os.close(fd)
    other = opened(tmp_path / "entries.log")
    assert other == fd, "the lowest number that is free"
    may_write.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    os.close(other)
    assert (tmp_path / "entries.log").read_bytes() == b""


async def test_pieces_come_back_from_disk_and_a_short_file_is_told(tmp_path: Path) -> None:
    fd = opened(tmp_path / "target")
    try:
        region = Region(fd, 10, PIECE_BYTES + 5, is_on_disk=True)
        await region.write_piece(0, DATA)
        with pytest.raises(StoreError, match=r"ends at \d+, \d+ was due"):
            await region.sha256()
        with pytest.raises(StoreError, match="gave 0 of 5 bytes"):
            await region.read_piece(1)
        await region.write_piece(1, DATA[:5])
        assert await region.read_piece(0) == bytes(DATA)
        assert await region.read_piece(1) == b"xxxxx"
    finally:
        os.close(fd)


@pytest.mark.parametrize("is_on_disk", [True, False])
async def test_bytes_that_cannot_be_read_are_told_as_a_failure_of_the_store(tmp_path: Path, is_on_disk: bool) -> None:
    """As of a disk with a bad sector: any member may ask for what lies there. What the system says ended the port of
    data connections, and its daemon."""
    fd = os.open(tmp_path, os.O_RDONLY)  # of a folder: there is nothing to read
    try:
        region = Region(fd, 0, 5, is_on_disk)
        with pytest.raises(StoreError, match="cannot read bytes to send: Is a directory"):
            await region.read_piece(0)
        with pytest.raises(StoreError, match="cannot read bytes to hash them: Is a directory"):
            await region.sha256()
    finally:
        os.close(fd)


async def test_too_many_open_files_leave_none_more_open(tmp_path: Path) -> None:
    fd, before = opened(tmp_path / "target"), descriptors()
    with pytest.raises(OSError, match="Bad file descriptor"):  # as EMFILE: one duplicate is made, the next is not
        await pieces.in_thread((fd, -1), lambda *_: None)
    assert descriptors() == before
    os.close(fd)
