"""Shared buffers: bytes go in and come out, sizes are sealed, holes give memory back, nothing leaks."""

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.errors import WorkerError
from dilocoxd.wire.local.buffers import Buffer

MIB = 1 << 20


@pytest.fixture
def buffers() -> Iterator[Buffers]:
    made = Buffers()
    made.provide([Buffer("outbox", 8 * MIB), Buffer("inbox", 1 << 40)])
    files = {place(os.fstat(fd)) for fd in made.descriptors(["outbox", "inbox"])[0]}
    assert len(files) == 2 and files <= open_files()
    yield made
    made.close()
    assert not files & open_files()


def place(status: os.stat_result) -> tuple[int, int]:
    """Device and inode."""
    return status.st_dev, status.st_ino


def open_files() -> set[tuple[int, int]]:
    """Of all that this process has open."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one of this look
            found.add(place(entry.stat()))
    return found


def test_what_is_written_is_read_here_and_in_a_mapping(buffers: Buffers) -> None:
    buffers.write("outbox", 4096, b"abc")
    assert buffers.read("outbox", 4095, 5) == b"\0abc\0"
    [fd], [size] = buffers.descriptors(["outbox"])
    with mmap.mmap(fd, size) as view:
        assert view[4096:4099] == b"abc"
        view[0:2] = b"hi"
    assert buffers.read("outbox", 0, 2) == b"hi"


def resident_bytes(buffers: Buffers, name: str) -> int:
    """Memory that the buffer really occupies."""
    [fd], _sizes = buffers.descriptors([name])
    return os.fstat(fd).st_blocks * 512


def test_a_terabyte_of_inbox_costs_nothing_until_it_is_used_and_can_be_given_back(buffers: Buffers) -> None:
    assert resident_bytes(buffers, "inbox") == 0
    offset = (1 << 40) - MIB
    buffers.write("inbox", offset, b"x" * MIB)
    assert resident_bytes(buffers, "inbox") >= MIB
    buffers.punch("inbox", offset, MIB)
    assert resident_bytes(buffers, "inbox") == 0
    assert buffers.read("inbox", offset, 3) == b"\0\0\0"


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (8 * MIB, 1), (8 * MIB - 1, 2), (0, -1)])
def test_outside_is_refused(buffers: Buffers, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="outside buffer"):
        buffers.read("outbox", offset, length)
    with pytest.raises(ValueError, match="outside buffer"):
        buffers.punch("outbox", offset, length)
    with pytest.raises(ValueError, match="outside buffer"):
        buffers.write("outbox", 8 * MIB - 1, b"ab")
    with pytest.raises(ValueError, match="outside buffer"):
        buffers.read("unknown", 0, 1)


def test_a_worker_cannot_shrink_or_grow_a_buffer(buffers: Buffers) -> None:
    [fd], [size] = buffers.descriptors(["outbox"])
    for wrong in (0, size * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, wrong)


def test_providing_again_keeps_the_content_and_another_size_is_refused(buffers: Buffers) -> None:
    buffers.write("outbox", 0, b"kept")
    buffers.provide([Buffer("outbox", 8 * MIB), Buffer("result", MIB)])
    assert buffers.read("outbox", 0, 4) == b"kept" and buffers.size("result") == MIB
    with pytest.raises(WorkerError, match="now wants"):
        buffers.provide([Buffer("outbox", 9 * MIB)])


def test_descriptors_are_closed_in_children(buffers: Buffers) -> None:
    [fd], _sizes = buffers.descriptors(["outbox"])
    assert not os.get_inheritable(fd)
