"""A snapshot directory is whole or absent; damage is found and named; an index from a stranger cannot hurt."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from dilocoxd.errors import StoreError
from dilocoxd.store import snapshots
from dilocoxd.store.durable import Corrupt
from dilocoxd.store.snapshots import CHUNK_BYTES, SnapshotFile, SnapshotIndex


def make(root: Path, number: int, size: int = 2 * CHUNK_BYTES + 5) -> Path:
    """A published snapshot with one file of three chunks."""
    directory = root / str(number)
    temporary = snapshots.temporary_directory(directory)
    temporary.mkdir(parents=True)
    (temporary / snapshots.ANCHOR_NAME).write_bytes(bytes(range(251)) * (size // 251 + 1))
    os.truncate(temporary / snapshots.ANCHOR_NAME, size)
    file = snapshots.hash_chunks(temporary / snapshots.ANCHOR_NAME)
    index = SnapshotIndex("run-1", number, "aa" * 32, "bb" * 32, "", (file,))
    snapshots.publish(temporary, directory, index)
    return directory


def test_published_snapshot_verifies_and_is_listed(tmp_path: Path) -> None:
    directory = make(tmp_path, 7)
    index = snapshots.verify(directory)
    assert index.round == 7
    assert index.total_bytes == 2 * CHUNK_BYTES + 5
    assert [index.files[0].chunk_length(chunk) for chunk in range(3)] == [CHUNK_BYTES, CHUNK_BYTES, 5]
    assert snapshots.list_rounds(tmp_path) == [7]
    assert snapshots.decode_index(index.encode(), "test") == index


def test_chain_head_is_stamped_later(tmp_path: Path) -> None:
    directory = make(tmp_path, 7)
    stamped = snapshots.stamp_chain_head(directory, bytes(range(32)))
    assert snapshots.verify(directory) == stamped
    assert stamped.chain_head == bytes(range(32)).hex()


def test_damage_is_named_by_file_and_chunk(tmp_path: Path) -> None:
    directory = make(tmp_path, 7)
    path = directory / snapshots.ANCHOR_NAME
    with path.open("r+b") as file:
        file.seek(CHUNK_BYTES + 10)
        file.write(b"\xff\xff")
    with pytest.raises(Corrupt, match=r"anchor.safetensors is damaged in chunk 1 "):
        snapshots.verify(directory)
    os.truncate(path, CHUNK_BYTES)
    with pytest.raises(Corrupt, match=f"{CHUNK_BYTES} bytes instead of"):
        snapshots.verify(directory)
    path.unlink()
    with pytest.raises(Corrupt, match="cannot be read"):
        snapshots.verify(directory)


def test_a_flipped_byte_of_the_index_is_noticed(tmp_path: Path) -> None:
    directory = make(tmp_path, 7)
    path = directory / snapshots.INDEX_NAME
    good = path.read_bytes()
    for position in range(len(good)):
        flipped = good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :]
        with pytest.raises(Corrupt):
            snapshots.decode_index(flipped, "flipped")
    path.unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        snapshots.verify(directory)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": -1},
        {"round": True},
        {"state_digest": "zz"},
        {"state_digest": "BB" * 32},
        {"chain_head": "AA " * 32},
        {"chain_head": "aa"},
        {"run_id": 5},
        {"files": ()},
        {"files": (SnapshotFile("../../etc/passwd", 5, ("aa" * 32,)),)},
        {"files": (SnapshotFile(snapshots.ANCHOR_NAME, 0, ()),)},
        {"files": (SnapshotFile(snapshots.ANCHOR_NAME, 1 << 60, ("aa" * 32,)),)},
        {"files": (SnapshotFile(snapshots.ANCHOR_NAME, CHUNK_BYTES + 1, ("aa" * 32,)),)},
        {"files": (SnapshotFile(snapshots.ANCHOR_NAME, 5, ("aa" * 31,)),)},
        {"files": (SnapshotFile(snapshots.ANCHOR_NAME, 5, ("CC" * 32,)),)},
        {"segments": ((5, "CC" * 32),)},
    ],
    ids=str,
)
def test_an_index_that_contradicts_itself_is_refused(changes: dict[str, object]) -> None:
    good = SnapshotIndex("run-1", 3, "aa" * 32, "bb" * 32, "", (SnapshotFile(snapshots.ANCHOR_NAME, 5, ("cc" * 32,)),))
    assert snapshots.decode_index(good.encode(), "good") == good
    with pytest.raises(Corrupt):
        snapshots.decode_index(dataclasses.replace(good, **changes).encode(), "bad")  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"nonsense", b"[" * 100_000, json.dumps({"format": 1}).encode()])
def test_bytes_that_are_no_index_are_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        snapshots.decode_index(data, "bad")


def test_fields_that_nobody_knows_are_told_in_one_line() -> None:
    """E9: who joins is told why a donor's index is none, and the donor wrote it."""
    body = {**dataclasses.asdict(SnapshotIndex("run-1", 3, "aa" * 32, "bb" * 32, "", ())), "a\x1b[2J\nb" * 99: 1}
    whole = body | {"format": snapshots._FORMAT}
    digest = hashlib.sha256(snapshots._canonical(whole)).hexdigest()
    with pytest.raises(Corrupt, match="not a snapshot index") as found:
        snapshots.decode_index(json.dumps(whole | {"sha256": digest}).encode(), "bad")
    assert str(found.value).isprintable() and len(str(found.value)) < 300


def test_a_half_written_snapshot_is_invisible_and_removed(tmp_path: Path) -> None:
    make(tmp_path, 3)
    hidden = snapshots.temporary_directory(tmp_path / "4")
    hidden.mkdir()
    (hidden / snapshots.ANCHOR_NAME).write_bytes(b"half")
    assert snapshots.list_rounds(tmp_path) == [3]
    snapshots.remove_leftovers(tmp_path)
    assert not hidden.exists()
    assert snapshots.list_rounds(tmp_path / "nowhere") == []


def test_prune_keeps_the_newest(tmp_path: Path) -> None:
    for number in (2, 4, 10, 6):
        make(tmp_path, number, size=100)
    assert snapshots.prune(tmp_path, keep=2, height=10) == [2, 4]
    assert snapshots.list_rounds(tmp_path) == [6, 10]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "6"]


def test_snapshot_of_a_branch_that_was_left_takes_the_place_of_none(tmp_path: Path) -> None:
    """It lies above the height: the log is replayed from the one below."""
    for number in (2, 4, 10):
        make(tmp_path, number, size=100)
    assert snapshots.prune(tmp_path, keep=1, height=4) == [2]
    assert snapshots.list_rounds(tmp_path) == [4, 10]


def test_downloads_that_the_chain_has_passed_are_removed(tmp_path: Path) -> None:
    for number in (4, 5, 6):
        snapshots.download_directory(tmp_path, number).mkdir()
    snapshots.remove_downloads(tmp_path, 5)
    assert list(tmp_path.iterdir()) == [snapshots.download_directory(tmp_path, 6)]


def test_linked_snapshot_outlives_the_one_that_replaces_it(tmp_path: Path) -> None:
    first = make(tmp_path, 5, size=100)
    expected = snapshots.verify(first)
    snapshots.link_snapshot(first, tmp_path / "aside" / "5")
    make(tmp_path, 5, size=200)
    assert snapshots.verify(tmp_path / "aside" / "5") == expected
    with pytest.raises(Corrupt, match="cannot be read"):
        snapshots.link_snapshot(tmp_path / "9", tmp_path / "aside" / "9")
    (first / snapshots.ANCHOR_NAME).unlink()
    with pytest.raises(Corrupt, match="is not complete"):
        snapshots.link_snapshot(first, tmp_path / "aside" / "6")
    assert snapshots.list_rounds(tmp_path / "aside") == [5]


def test_publishing_again_replaces(tmp_path: Path) -> None:
    make(tmp_path, 5, size=100)
    directory = make(tmp_path, 5, size=200)
    assert snapshots.verify(directory).total_bytes == 200
