"""The payload of a vote is written while its segments come, once, and becomes the log's record."""

import asyncio
import errno
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dilocoxd.daemon.chain.payload_map import PayloadMaps, Place
from dilocoxd.daemon.chain.promise_file import PromiseFile
from dilocoxd.daemon.chain.voted_payload import VotedPayload
from dilocoxd.errors import StoreError
from dilocoxd.ids import Attempt, PeerId, RoundIndex
from dilocoxd.machines.round.outputs import Promise
from dilocoxd.store import durable
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.store.log_record import PAYLOAD_AT, encode_around
from dilocoxd.wire.entry import Signature, SignedEntry, entry_hash
from dilocoxd.wire.local.buffers import RESULT
from tests.unit.daemon.chain.chain_maker import GENESIS, LENGTHS, RUN, chain, payload_of
from tests.unit.daemon.chain.test_promise_file import memfd

MAP = PayloadMaps({0: (LENGTHS,)})
FIRST, SECOND = (MAP.at(0).own(RESULT, 0, segment) for segment in range(2))
VOTERS, OFFERS = (PeerId("A"), PeerId("B")), (Signature(b"key", b"one"), Signature(b"key", b"two"))


def vote(signed: SignedEntry) -> Promise:
    return Promise(RoundIndex(signed.entry.round), GENESIS, Attempt(0), Attempt(0), signed.entry, VOTERS, OFFERS)


async def voted(folder: Path, signed: SignedEntry, payload: bytes) -> PromiseFile:
    file = PromiseFile(folder)
    await file.save(vote(signed), memfd(payload), MAP)
    return file


def payload_in(log: EntryLog, index: int) -> bytes:
    place = log.payload(index)
    return Path(place.path).read_bytes()[place.offset : place.offset + place.length]


async def test_vote_writes_only_what_was_not_there_before_the_last_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (signed,) = chain(1)
    file, result, written = PromiseFile(tmp_path), memfd(payload_of(0)), list[tuple[int, int]]()
    await file.write_early(result, FIRST)
    write_all = durable.write_all

    def noted(fd: int, data: bytes, offset: int) -> int:
        written.append((offset - PAYLOAD_AT, len(data)))
        return write_all(fd, data, offset)

    monkeypatch.setattr(durable, "write_all", noted)
    await file.save(vote(signed), result, MAP)
    assert written == [(SECOND.offset, SECOND.length)]
    kept = await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP)
    assert kept is not None and kept.results_held


def test_vote_hashes_only_what_was_not_there_before_the_last_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While all wait for it: what is there is compared byte for byte."""
    payload, result = VotedPayload(tmp_path / "promise.payload"), memfd(payload_of(0))
    hashed, sha256 = list[int](), hashlib.sha256
    payload.write_early(result, FIRST.offset, FIRST.length)

    class Noted:
        def __init__(self) -> None:
            self._inner = sha256()

        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            self._inner.update(data)

        def digest(self) -> bytes:
            return self._inner.digest()

    whole = payload_of(0)
    hashes = [sha256(whole[one.offset : one.offset + one.length]).digest() for one in (FIRST, SECOND)]
    monkeypatch.setattr(hashlib, "sha256", Noted)
    assert payload.finish(result, LENGTHS, hashes)
    assert hashed == [SECOND.length]


async def test_what_an_attempt_that_failed_wrote_early_is_not_taken_for_the_payload(tmp_path: Path) -> None:
    (signed,) = chain(1)
    file = PromiseFile(tmp_path)
    await file.write_early(memfd(payload_of(0, b"another attempt")), FIRST)
    await file.save(vote(signed), memfd(payload_of(0)), MAP)
    empty = memfd(bytes(8))
    kept = await PromiseFile(tmp_path).load(empty, MAP)
    assert kept is not None and kept.results_held
    assert os.pread(empty, 8, 0) == payload_of(0)


async def test_disk_that_is_full_early_stops_only_the_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (signed,) = chain(1)
    file = PromiseFile(tmp_path)

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "write_all", full)
        await file.write_early(memfd(payload_of(0)), FIRST)
        with pytest.raises(StoreError, match="free space"):
            await file.save(vote(signed), memfd(payload_of(0)), MAP)
    assert not list(tmp_path.iterdir())
    await file.save(vote(signed), memfd(payload_of(0)), MAP)
    assert file.holding(entry_hash(signed.entry)) is not None


async def test_record_of_an_entry_that_was_voted_for_is_the_file_of_the_vote(tmp_path: Path) -> None:
    first, second = chain(2)
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    file = await voted(tmp_path, first, payload_of(0))
    held = file.holding(entry_hash(first.entry))
    assert held is not None and file.holding(entry_hash(second.entry)) is None
    assert log.append_voted(first, LENGTHS, held)
    assert held.samefile(log.path(0))
    await file.save(vote(second), memfd(payload_of(1)), MAP)  # another file: what the log has stays
    log.append(second, PayloadSource(memfd(payload_of(1)), 0, LENGTHS))
    again = EntryLog(tmp_path / "log", RUN, GENESIS)
    assert (again.height, again.cut_tail, again.verify()) == (2, "", [])
    assert [payload_in(again, 0), payload_in(again, 1)] == [payload_of(0), payload_of(1)]
    assert again.entry(0) == first and again.result(0, 1) == payload_of(0)[LENGTHS[0] :]
    assert again.drop_payloads(1) == sum(LENGTHS) and not again.has_payload(0)


@pytest.mark.parametrize("crash", ["before it", "in what stands behind", "in its header", "before the link"])
async def test_who_dies_while_the_record_is_made_still_has_the_payload_of_its_vote(tmp_path: Path, crash: str) -> None:
    (signed,) = chain(1)
    held = (await voted(tmp_path, signed, payload_of(0))).holding(entry_hash(signed.entry))
    head, rest = encode_around(signed, LENGTHS)
    assert held is not None
    with held.open("r+b") as file:
        if crash != "before it":
            file.seek(PAYLOAD_AT + sum(LENGTHS))
            file.write(rest[:100] if crash == "in what stands behind" else rest)
            file.seek(0)
            file.write({"in its header": head[:9], "before the link": head}.get(crash, b""))
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    assert (log.height, log.cut_tail) == (0, "")
    result, after = memfd(bytes(8)), PromiseFile(tmp_path)
    kept = await after.load(result, MAP)
    assert kept is not None and kept.results_held
    assert log.append_voted(signed, LENGTHS, held), "votes come again, and the record is whole"
    assert log.verify() == [] and payload_in(log, 0) == payload_of(0)


async def test_record_is_never_written_again_wherever_it_is_one(tmp_path: Path) -> None:
    (signed,) = chain(1)
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    held = (await voted(tmp_path, signed, payload_of(0))).holding(entry_hash(signed.entry))
    assert held is not None and log.append_voted(signed, LENGTHS, held)
    Aside(tmp_path / "aside").leave(log, 0, [])
    before = held.read_bytes()
    assert not log.append_voted(signed, LENGTHS, held)
    assert (log.height, held.read_bytes()) == (0, before)


async def test_payload_is_copied_where_files_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (signed,) = chain(1)
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    held = (await voted(tmp_path, signed, payload_of(0))).holding(entry_hash(signed.entry))

    def no_links(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", no_links)
    assert held is not None and not log.append_voted(signed, LENGTHS, held)
    log.append(signed, PayloadSource(memfd(payload_of(0)), 0, LENGTHS))
    assert log.verify() == []


async def test_entry_whose_directory_could_not_be_synced_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (signed,) = chain(1)
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    held = (await voted(tmp_path, signed, payload_of(0))).holding(entry_hash(signed.entry))
    assert held is not None
    with monkeypatch.context() as patched:

        def broken(path: Path) -> None:
            raise OSError(errno.EIO, "disk")

        patched.setattr("dilocoxd.store.log.fsync_directory", broken)
        with pytest.raises(StoreError, match="appending entry 0"):
            log.append_voted(signed, LENGTHS, held)
    assert EntryLog(tmp_path / "log", RUN, GENESIS).height == 0


@pytest.mark.parametrize("cut", [0, 24, 4000, PAYLOAD_AT + 3, PAYLOAD_AT + 8, -40, -1])
async def test_record_of_a_vote_that_a_power_loss_has_torn_is_cut(tmp_path: Path, cut: int) -> None:
    (signed,) = chain(1)
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    held = (await voted(tmp_path, signed, payload_of(0))).holding(entry_hash(signed.entry))
    assert held is not None and log.append_voted(signed, LENGTHS, held)
    os.truncate(log.path(0), cut if cut >= 0 else held.stat().st_size + cut)
    again = EntryLog(tmp_path / "log", RUN, GENESIS)
    assert again.height == 0 and "damaged" in again.cut_tail


async def test_record_that_claims_more_payload_than_a_file_can_have_is_damaged(tmp_path: Path) -> None:
    (signed,) = chain(1)
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    head, rest = encode_around(signed, LENGTHS)
    log.path(0).write_bytes((head[:16] + b"\xff" * 8 + head[24:]).ljust(PAYLOAD_AT, b"\0") + payload_of(0) + rest)
    assert EntryLog(tmp_path / "log", RUN, GENESIS).cut_tail


async def test_payload_that_is_not_that_of_the_entry_makes_no_record(tmp_path: Path) -> None:
    (signed,) = chain(1)
    file = await voted(tmp_path, signed, payload_of(0, b"other"))
    assert file.holding(entry_hash(signed.entry)) is None


async def test_vote_waits_for_what_is_just_written_early(tmp_path: Path) -> None:
    (signed,) = chain(1)
    file, result = PromiseFile(tmp_path), memfd(payload_of(0))
    async with asyncio.TaskGroup() as group:
        for place in (FIRST, SECOND):
            group.create_task(file.write_early(result, place))
        group.create_task(file.save(vote(signed), result, MAP))
    kept = await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP)
    assert kept is not None and kept.results_held
    assert sorted(path.name for path in tmp_path.iterdir()) == ["promise", "promise.payload"]


async def test_payload_of_a_vote_of_before_this_format_comes_back(tmp_path: Path) -> None:
    (signed,) = chain(1)
    await voted(tmp_path, signed, payload_of(0))
    (tmp_path / "promise.payload").write_bytes(payload_of(0))
    kept = await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP)
    assert kept is not None and kept.results_held


async def test_what_was_overwritten_early_is_not_taken_for_what_stood_there_before(tmp_path: Path) -> None:
    """Another low rank cuts RESULT elsewhere: what it wrote lies over the end of one segment and before another."""
    (signed,) = chain(1)
    file, result = PromiseFile(tmp_path), memfd(payload_of(0))
    for place in (FIRST, SECOND):
        await file.write_early(result, place)
    await file.write_early(memfd(b"another"), Place(RESULT, 2, 5))
    await file.save(vote(signed), result, MAP)
    held, log = file.holding(entry_hash(signed.entry)), EntryLog(tmp_path / "log", RUN, GENESIS)
    assert held is not None and log.append_voted(signed, LENGTHS, held)
    assert log.verify() == [] and payload_in(log, 0) == payload_of(0)


async def test_payload_of_a_lock_outlasts_the_attempts_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They use RESULT anew, and each promises the lock once more: what it is locked on is on disk, and stays there."""
    (signed,) = chain(1)
    file, written = await voted(tmp_path, signed, payload_of(0)), list[bytes]()
    monkeypatch.setattr(durable, "write_all", lambda fd, data, offset: written.append(bytes(data)) or len(data))
    await file.save(replace(vote(signed), attempt=Attempt(1)), memfd(payload_of(0, b"of another attempt")), MAP)
    again = PromiseFile(tmp_path)
    kept = await again.load(memfd(bytes(8)), MAP)
    assert kept is not None and kept.promise.attempt == 1
    assert kept.results_held
    assert not written, "it was written again"


async def test_commit_goes_on_without_the_file_of_the_vote(tmp_path: Path) -> None:
    """Somebody has removed it: RESULT has the payload still, and the log has a disk."""
    (signed,) = chain(1)
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    held = (await voted(tmp_path, signed, payload_of(0))).holding(entry_hash(signed.entry))
    assert held is not None
    held.unlink()
    assert not log.append_voted(signed, LENGTHS, held)
    log.append(signed, PayloadSource(memfd(payload_of(0)), 0, LENGTHS))
    assert log.verify() == []


async def test_nothing_is_prepared_for_a_link_where_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, tried = EntryLog(tmp_path / "log", RUN, GENESIS), list[object]()

    def no_links(*paths: object) -> None:
        tried.append(paths)
        raise OSError(errno.EPERM, "a file system without links")

    monkeypatch.setattr(os, "link", no_links)
    for index, signed in enumerate(chain(2)):
        held = (await voted(tmp_path, signed, payload_of(index))).holding(entry_hash(signed.entry))
        assert held is not None and not log.append_voted(signed, LENGTHS, held)
        assert (held.stat().st_size > PAYLOAD_AT + sum(LENGTHS)) == (index == 0), "completed, and synced, for nothing"
        log.append(signed, PayloadSource(memfd(payload_of(index)), 0, LENGTHS))
    assert len(tried) == 1 and log.verify() == []


async def test_vote_waits_for_no_early_writing_that_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts that fail on a slow disk: what they wanted to be written early is one writing for each place."""
    (signed,) = chain(1)
    file, result, goes_on, begun = PromiseFile(tmp_path), memfd(payload_of(0)), threading.Event(), list[int]()
    write_early = VotedPayload.write_early

    def slow(payload: VotedPayload, source: int, offset: int, length: int) -> None:
        begun.append(offset)
        goes_on.wait(60)
        write_early(payload, source, offset, length)

    monkeypatch.setattr(VotedPayload, "write_early", slow)
    async with asyncio.TaskGroup() as group:
        early = [group.create_task(file.write_early(result, place)) for _ in range(50) for place in (FIRST, SECOND)]
        while not begun:
            await asyncio.sleep(0)
        waiting = [task for task in early if not task.done()]
        assert len(waiting) <= 3, "one for each place, and the one that is written"
        group.create_task(file.save(vote(signed), result, MAP))
        await asyncio.sleep(0)
        goes_on.set()
    assert begun == [FIRST.offset]
    kept = await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP)
    assert kept is not None and kept.results_held


async def test_start_removes_what_a_crash_left_half_written(tmp_path: Path) -> None:
    """The vote of a site that only watches from now on would never do it."""
    (signed,) = chain(1)
    await voted(tmp_path, signed, payload_of(0))
    for name in ("promise.tmp", "promise.payload.tmp"):
        (tmp_path / name).write_bytes(bytes(100))
    kept = await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP)
    assert kept is not None and kept.results_held
    assert sorted(path.name for path in tmp_path.iterdir()) == ["promise", "promise.payload"]
