"""Files of kept work: found by phase, replaced by a later attempt, dropped by round."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest, PhaseId
from dilocoxd.store import durable
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, Piece, check_work, work_path

BODY = bytes(range(256)) * 10


def keep(kept: KeptWorkStore, phase: int, round_index: int, body: bytes = BODY) -> None:
    fd = os.memfd_create("payload")
    try:
        os.pwrite(fd, b"##" + body, 0)
        half = len(body) // 2
        pieces = [Piece(fd, 2, half), Piece(fd, 2 + half, len(body) - half)]
        kept.keep(KeptWork(PhaseId(phase), round_index, Digest(bytes([phase]) * 32), 2), pieces)
    finally:
        os.close(fd)


def test_kept_work_is_found_whole(tmp_path: Path) -> None:
    kept = KeptWorkStore(tmp_path / "work")
    assert kept.find(PhaseId(7)) is None and kept.total_bytes() == 0
    keep(kept, 7, 3)
    path = work_path(tmp_path / "work", PhaseId(7))
    found = check_work(path)
    assert found == KeptWork(PhaseId(7), 3, Digest(bytes([7]) * 32), 2, len(BODY), num_pieces=2)
    assert path.read_bytes()[found.offset : found.offset + found.body_bytes] == BODY
    keep(kept, 7, 4, BODY[:100])
    again = kept.find(PhaseId(7))
    assert again is not None and (again.round, again.body_bytes) == (4, 100)


def test_old_and_broken_files_are_dropped(tmp_path: Path) -> None:
    kept = KeptWorkStore(tmp_path)
    for phase in range(5):
        keep(kept, phase, 10 + phase)
    work_path(tmp_path, PhaseId(4)).write_bytes(b"torn")
    assert kept.drop_below(12, {PhaseId(0)}) > len(BODY)
    assert [kept.find(PhaseId(phase)) is not None for phase in range(5)] == [True, False, True, True, False]
    assert kept.drop_below(12) > len(BODY)
    assert [kept.find(PhaseId(phase)) is not None for phase in range(5)] == [False, False, True, True, False]
    assert kept.total_bytes() < 3 * len(BODY)


def test_a_file_says_whose_work_it_carries(tmp_path: Path) -> None:
    kept = KeptWorkStore(tmp_path)
    content = ((PhaseId(2), -1), (PhaseId(5), 1))
    kept.keep(KeptWork(PhaseId(5), 1, Digest(bytes(32)), content=content), [])
    assert check_work(work_path(tmp_path, PhaseId(5))).content == content
    assert kept.contents() == {5: {2: -1, 5: 1}}
    kept.forget(PhaseId(5))
    kept.forget(PhaseId(5))
    assert kept.contents() == {}


def test_a_file_stays_as_long_as_that_of_a_phase_that_it_carries(tmp_path: Path) -> None:
    """Without it nothing would say that the chain has that work."""
    kept = KeptWorkStore(tmp_path)
    for phase, round_index, carried in ((1, 20, (1,)), (2, 5, (1, 2)), (3, 6, (3,))):
        content = tuple((PhaseId(number), 1) for number in carried)
        kept.keep(KeptWork(PhaseId(phase), round_index, Digest(bytes(32)), content=content), [])
    kept.drop_below(10)
    assert kept.contents().keys() == {1, 2}
    kept.drop_below(21)
    assert kept.contents() == {}


def test_a_payload_that_ends_too_early_is_an_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    kept = KeptWorkStore(tmp_path)
    keep(kept, 1, 1)
    fd = os.memfd_create("short")
    try:
        with pytest.raises(StoreError, match="too early"):
            kept.keep(KeptWork(PhaseId(1), 2, Digest(bytes(32))), [Piece(fd, 0, 10)])
    finally:
        os.close(fd)
    found = kept.find(PhaseId(1))
    assert found is not None and found.round == 1


def test_a_payload_that_ends_where_the_early_copy_was_cut_is_not_taken_for_whole(tmp_path: Path) -> None:
    kept, fd = KeptWorkStore(tmp_path), os.memfd_create("short")
    try:
        os.pwrite(fd, BODY, 0)
        kept.keep_early(Piece(fd, 0, len(BODY)), 0, 0)
        (early,) = tmp_path.iterdir()
        os.truncate(early, early.stat().st_size - len(BODY) + 100)
        os.truncate(fd, 100)
        with pytest.raises(StoreError, match="too early"):
            kept.keep(KeptWork(PhaseId(5), 1, Digest(bytes(32))), [Piece(fd, 0, len(BODY))])
    finally:
        os.close(fd)
    assert list(tmp_path.iterdir()) == []


def early_and_kept(folder: Path, early: bytes, body: bytes, num_items: int) -> None:
    """Work whose first half was written early, from what was there then."""
    kept, fd, half = KeptWorkStore(folder), os.memfd_create("payload"), len(body) // 2
    try:
        os.pwrite(fd, early, 0)
        kept.keep_early(Piece(fd, 0, half), 0, num_items)
        os.pwrite(fd, body, 0)
        pieces = [Piece(fd, 0, half), Piece(fd, half, len(body) - half)]
        kept.keep(KeptWork(PhaseId(5), 1, Digest(bytes(32)), content=((PhaseId(5), 1),)), pieces)
    finally:
        os.close(fd)


@pytest.mark.parametrize("num_items", [0, 1, 2])
@pytest.mark.parametrize("early", [BODY, BODY[::-1]])
def test_what_was_written_early_counts_only_if_it_is_what_was_given(
    tmp_path: Path, early: bytes, num_items: int
) -> None:
    """In its place: how much the content has is known for certain only when it is kept."""
    early_and_kept(tmp_path, early, BODY, num_items)
    path = work_path(tmp_path, PhaseId(5))
    found = check_work(path)
    assert path.read_bytes()[found.offset : found.offset + found.body_bytes] == BODY
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_damage_anywhere_is_found(tmp_path: Path) -> None:
    """In front, content, body, hashes of the pieces, and the hash of those."""
    kept, path = KeptWorkStore(tmp_path), work_path(tmp_path, PhaseId(5))
    keep(kept, 5, 3, BODY[:64])
    sound = path.read_bytes()
    for place in range(len(sound)):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        assert kept.find_whole(PhaseId(5)) is None, place
    for length in range(len(sound)):
        path.write_bytes(sound[:length])
        assert kept.find_whole(PhaseId(5)) is None, length
    path.write_bytes(sound)
    assert kept.find_whole(PhaseId(5)) is not None


def test_work_is_hashed_once_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All wait for the vote, which compares what was written early with what is to be there."""
    hashed, sha256 = list[int](), hashlib.sha256

    class Noted:
        def __init__(self, data: bytes = b"") -> None:
            self._inner = sha256()
            self.update(data)

        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            self._inner.update(data)

        def digest(self) -> bytes:
            return self._inner.digest()

    monkeypatch.setattr(hashlib, "sha256", Noted)
    early_and_kept(tmp_path, BODY, BODY, 1)
    assert sum(length for length in hashed if length >= len(BODY) // 2) == len(BODY)


def test_what_was_written_early_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, write_all = list[int](), durable.write_all

    def noted(fd: int, data: bytes, offset: int) -> int:
        written.append(len(data))
        return write_all(fd, data, offset)

    monkeypatch.setattr(durable, "write_all", noted)
    early_and_kept(tmp_path, BODY, BODY, 1)
    assert sum(length for length in written if length >= len(BODY) // 2) == len(BODY)


def test_disk_that_is_full_early_is_told_when_work_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(durable, "write_all", full)
    with pytest.raises(StoreError, match="free space"):
        early_and_kept(tmp_path, BODY, BODY, 1)
    assert not list(tmp_path.iterdir())


def test_what_a_crash_left_unfinished_is_cleared(tmp_path: Path) -> None:
    """By whatever version: one file for each crash, of the length of a payload."""
    kept, fd = KeptWorkStore(tmp_path), os.memfd_create("payload")
    try:
        os.pwrite(fd, BODY, 0)
        kept.keep(KeptWork(PhaseId(1), 2, Digest(bytes(32))), [Piece(fd, 0, len(BODY))])
        for name in ("next.work.tmp", "7.work.tmp"):
            (tmp_path / name).write_bytes(bytes(100))
        kept.clear_unfinished()
        assert [path.name for path in tmp_path.iterdir()] == ["1.work"]
        kept.keep_early(Piece(fd, 0, len(BODY)), 0, 0)
        kept.keep(KeptWork(PhaseId(2), 2, Digest(bytes(32))), [Piece(fd, 0, len(BODY))])
        assert check_work(work_path(tmp_path, PhaseId(2))).body_bytes == len(BODY)
    finally:
        os.close(fd)
    KeptWorkStore(tmp_path / "none").clear_unfinished()
