"""Chunks of a file whose bytes lie on several machines: each is hashed once, where it is whole, else of its pieces."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from dilocoxd.daemon.workers.machine_files import HeldFile, LocalFiles, PartsMachine
from dilocoxd.errors import StoreError
from dilocoxd.store import snapshots

CHUNK = 64


class Sparse(LocalFiles):
    """Has zeros where others hold the bytes."""

    def __init__(self, data: bytes, first: int, stop: int) -> None:
        self._data = bytes(first) + data[first:stop] + bytes(len(data) - stop)

    async def read(self, path: Path, first: int, stop: int) -> bytes:
        return self._data[first:stop]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=500), st.lists(st.integers(0, 500), max_size=4))
def test_every_chunk_has_the_hash_of_the_whole_file(
    monkeypatch: pytest.MonkeyPatch, data: bytes, cuts: list[int]
) -> None:
    """Some machines have nothing, some less than a chunk."""
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", CHUNK)
    ends = sorted(min(cut, len(data)) for cut in cuts)
    held = list(zip([0, *ends], [*ends, len(data)], strict=True))
    machines = [PartsMachine(1, Sparse(data, *stretch)) for stretch in held]
    file = HeldFile(Path("file"), len(data), held)
    found = asyncio.run(file.border_hashes(machines))
    whole = [number for stretch in held for number in snapshots.chunks_within(len(data), *stretch)]
    assert sorted([*found, *whole]) == list(range(-(-len(data) // CHUNK)))
    for number, text in found.items():
        assert text == hashlib.sha256(data[CHUNK * number : CHUNK * (number + 1)]).hexdigest()


def test_byte_that_nobody_has_is_told() -> None:
    file = HeldFile(Path("file"), 100, [(0, 40), (50, 100)])
    machines = [PartsMachine(1, Sparse(bytes(100), *stretch)) for stretch in ((0, 40), (50, 100))]
    with pytest.raises(StoreError, match="no machine of the site has byte 40 of file"):
        asyncio.run(file.border_hashes(machines))


def test_what_was_prepared_is_published_or_forgotten(tmp_path: Path) -> None:
    files, directory = LocalFiles(), tmp_path / "7"
    index = snapshots.SnapshotIndex("run", 7, "00" * 32, "00" * 32, "", ())

    async def scenario() -> None:
        await files.prepare(directory)
        (snapshots.temporary_directory(directory) / "left").touch()
        await files.prepare(directory)
        await files.forget(directory)
        assert not list(tmp_path.iterdir())
        await files.prepare(directory)
        (snapshots.temporary_directory(directory) / "file").write_bytes(b"abcdef")
        await files.publish(directory, index)
        assert [path.name for path in tmp_path.iterdir()] == ["7"]
        assert await files.read(directory / "file", 2, 5) == b"cde"
        for path, stop in ((directory / "file", 7), (directory / "none", 1)):
            with pytest.raises(StoreError):
                await files.read(path, 0, stop)

    asyncio.run(scenario())
    assert (directory / snapshots.INDEX_NAME).read_bytes() == index.encode()
