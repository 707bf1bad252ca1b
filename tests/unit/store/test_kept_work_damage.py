"""Files of kept work that are damaged, foreign, or change while they are read: refused, in bounded memory."""

import hashlib
import os
import struct
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dilocoxd.daemon.audit.kept_shares import KeptShares
from dilocoxd.daemon.chain.voted_payload import VotedPayload
from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest, PhaseId
from dilocoxd.outerworker.results.kept import open_kept
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, Piece, check_work, read_front, work_path
from dilocoxd.store.log_record import PAYLOAD_AT

FRONT, ITEM, PART, HASH = struct.Struct("<8sQQ32sQQQQQ"), 16, 40, 32
ABSURD = (1 << 64) - 1
SIZE = 64 << 20
PHASE = PhaseId(5)


def front(num_items: int, num_pieces: int, body: int, magic: bytes = b"dlxwork4") -> bytes:
    return FRONT.pack(magic, PHASE, 3, bytes(32), 1, body, 0, num_items, num_pieces)


def keep(folder: Path, phase: PhaseId, body: bytes, round_index: int = 3) -> Path:
    fd = os.memfd_create("payload")
    try:
        os.pwrite(fd, body, 0)
        work = KeptWork(phase, round_index, Digest(bytes(32)), content=((phase, 1),))
        KeptWorkStore(folder).keep(work, [Piece(fd, 0, len(body))])
    finally:
        os.close(fd)
    return work_path(folder, phase)


@pytest.mark.parametrize("magic", [b"dlxwork4", b"dlxwork3", b"another1"])
@pytest.mark.parametrize(
    ("num_items", "num_pieces", "body"),
    [
        (ABSURD, 0, 0),
        (0, ABSURD, 0),
        (0, 0, ABSURD),
        (ABSURD, ABSURD, ABSURD),
        ((SIZE - FRONT.size - HASH) // ITEM, 0, 0),
        (0, (SIZE - FRONT.size - HASH) // PART, (SIZE - FRONT.size - HASH) % PART),
    ],
    ids=["pairs", "pieces", "body", "all", "a file of pairs", "a file of pieces"],
)
def test_numbers_of_a_damaged_file_take_no_memory(
    tmp_path: Path, magic: bytes, num_items: int, num_pieces: int, body: int
) -> None:
    path = work_path(tmp_path, PHASE)
    path.write_bytes(front(num_items, num_pieces, body, magic))
    os.truncate(path, SIZE)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match=r"5\.work"):
            check_work(path)
        assert KeptWorkStore(tmp_path).contents() == {}
        assert tracemalloc.get_traced_memory()[1] < SIZE // 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("lengths", [(), (7,), (9,), (4, 3), (ABSURD,), (8, ABSURD)])
def test_pieces_make_the_body(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    """Else some of it would be believed that no hash covers."""
    body, path = b"payload!", work_path(tmp_path, PHASE)
    parts, left = b"", body
    for length in lengths:
        parts += struct.pack("<Q32s", length, hashlib.sha256(left[:length]).digest())
        left = left[length:]
    head = front(0, len(lengths), len(body))
    path.write_bytes(head + body + parts + hashlib.sha256(head + parts).digest())
    with pytest.raises(StoreError, match="damaged"):
        check_work(path)


def test_files_of_another_version_are_called_so(tmp_path: Path) -> None:
    path = work_path(tmp_path, PHASE)
    path.write_bytes(struct.pack("<8sQQ32sQQQQ", b"dlxwork3", 5, 3, bytes(32), 1, 4, 0, 0) + b"body" + bytes(32))
    with pytest.raises(StoreError, match="another version"):
        read_front(path)


def test_a_file_under_the_name_of_another_phase_is_not_of_that(tmp_path: Path) -> None:
    body, other = os.urandom(1000), work_path(tmp_path, PhaseId(6))
    other.write_bytes(keep(tmp_path, PHASE, body).read_bytes())
    store, shares = KeptWorkStore(tmp_path), KeptShares(tmp_path, lambda: (1000,))
    assert store.find(PHASE) == store.find_whole(PHASE) == check_work(work_path(tmp_path, PHASE))
    assert store.find(PhaseId(6)) is None and store.find_whole(PhaseId(6)) is None
    assert store.contents() == {5: {5: 1}}
    assert shares.place(5, 0).length == 1000
    with pytest.raises(StoreError, match="phase 6"):
        shares.place(6, 0)


@pytest.mark.parametrize("name", ["notes.work", "5 (copy).work", "-5.work", "05.work", "\u0665.work", ".work"])
def test_files_that_somebody_else_put_there_are_passed_over(tmp_path: Path, name: str) -> None:
    keep(tmp_path, PHASE, b"body")
    (tmp_path / name).write_bytes(b"not ours")
    store = KeptWorkStore(tmp_path)
    assert store.contents() == {5: {5: 1}}
    assert store.drop_below(9) > 0
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_was_checked_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another attempt may put another file in its place meanwhile, or retention remove it."""
    checked, other = os.urandom(1000), os.urandom(1000)
    path, sha256 = keep(tmp_path, PHASE, checked), hashlib.sha256

    def replaced(data: bytes = b"") -> Any:
        monkeypatch.setattr(hashlib, "sha256", sha256)
        keep(tmp_path, PHASE, other)
        return sha256(data)

    plan = SimpleNamespace(record_bytes=0, num_segments=1, is_centered=False, payload_tables={0: ((1000,),)})
    monkeypatch.setattr(hashlib, "sha256", replaced)
    workspace: Any = SimpleNamespace(plan=plan)
    segment: Any = SimpleNamespace(index=0)
    with open_kept(workspace, path, PHASE) as kept:
        assert check_work(path).body_bytes == 1000 and path.read_bytes().find(other) > 0
        assert bytes(kept.own(segment)) == checked


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept work", "payload of a vote"])
def test_nothing_is_found_where_neither_file_has_anything(tmp_path: Path, is_kept: bool) -> None:
    """What we gave is cut short, and so is what was written early, by whoever did both: they do not differ."""
    fd = os.memfd_create("payload")
    try:
        os.pwrite(fd, bytes(range(100)), 0)
        store, voted = KeptWorkStore(tmp_path), VotedPayload(tmp_path / "promise.payload")
        store.keep_early(Piece(fd, 0, 100), 0, 0)
        voted.write_early(fd, 0, 100)
        os.truncate(fd, 40)
        os.truncate(tmp_path / "next.work.tmp", FRONT.size + 40)
        os.truncate(voted.temporary, PAYLOAD_AT + 40)
        with pytest.raises(StoreError, match="too early"):
            if is_kept:
                store.keep(KeptWork(PHASE, 3, Digest(bytes(32))), [Piece(fd, 0, 100)])
            else:
                voted.finish(fd, (100,), (hashlib.sha256(bytes(range(100))).digest(),))
    finally:
        os.close(fd)
