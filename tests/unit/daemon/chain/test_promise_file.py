"""What was promised survives the process: the attempt, the entry voted for, and its payload."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.chain.promise_file import PromiseFile
from dilocoxd.errors import StoreError
from dilocoxd.ids import Attempt, PeerId, RoundIndex
from dilocoxd.machines.round.outputs import Promise
from dilocoxd.wire.entry import Signature, SignedVote
from dilocoxd.wire.messages import TakeBack
from tests.unit.daemon.chain.chain_maker import GENESIS, LENGTHS, chain, payload_of

OFFERS = (Signature(b"key", b"one"), Signature(b"key", b"two"))

MAP = PayloadMaps({0: (LENGTHS,)})
PATIENCE_S = 30.0


def memfd(data: bytes) -> int:
    fd = os.memfd_create("result")
    os.pwrite(fd, data, 0)
    return fd


async def test_promise_without_a_vote_comes_back(tmp_path: Path) -> None:
    promise = Promise(RoundIndex(3), GENESIS, Attempt(2), Attempt(0), None, (), ())
    result = memfd(bytes(8))
    await PromiseFile(tmp_path).save(promise, result, MAP)
    kept = await PromiseFile(tmp_path).load(result, MAP)
    assert kept is not None
    assert kept.promise == promise
    assert not kept.results_held


async def test_payload_and_promise_are_written_beside_what_must_be_kept_too_and_the_promise_stands_after_all(
    tmp_path: Path,
) -> None:
    entry = chain(1)[0].entry
    promise = Promise(RoundIndex(0), GENESIS, Attempt(1), Attempt(1), entry, (PeerId("A"), PeerId("B")), OFFERS)
    seen = []

    async def keep_work() -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not all((tmp_path / name).exists() for name in ("promise.payload.tmp", "promise.tmp")):
                await asyncio.sleep(0.001)
        seen.append((tmp_path / "promise").exists())

    await PromiseFile(tmp_path).save(promise, memfd(payload_of(0)), MAP, keep_work())
    assert seen == [False]


async def test_a_vote_waits_for_one_sync_after_those_that_go_on_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = chain(1)[0].entry
    promise = Promise(RoundIndex(0), GENESIS, Attempt(1), Attempt(1), entry, (PeerId("A"), PeerId("B")), OFFERS)
    first_two, fsync = threading.Barrier(2, timeout=PATIENCE_S), os.fsync
    num_synced = 0

    def counted(descriptor: int) -> None:
        nonlocal num_synced
        num_synced += 1
        if num_synced <= 2:
            first_two.wait()  # each begins before the other ends, or the test does
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    await PromiseFile(tmp_path).save(promise, memfd(payload_of(0)), MAP)
    assert num_synced == 3


async def test_promise_does_not_stand_when_the_work_could_not_be_kept(tmp_path: Path) -> None:
    entry = chain(1)[0].entry
    promise = Promise(RoundIndex(0), GENESIS, Attempt(1), Attempt(1), entry, (PeerId("A"), PeerId("B")), OFFERS)

    async def fill_the_disk() -> None:
        raise StoreError("no space")

    with pytest.raises(StoreError, match="no space"):
        await PromiseFile(tmp_path).save(promise, memfd(payload_of(0)), MAP, fill_the_disk())
    assert await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP) is None


async def test_vote_of_before_keeps_its_payload_when_the_work_of_the_next_could_not_be_kept(tmp_path: Path) -> None:
    entries = [signed.entry for signed in chain(2)]
    file = PromiseFile(tmp_path)
    votes = [
        Promise(RoundIndex(number), GENESIS, Attempt(0), Attempt(0), entry, (PeerId("A"), PeerId("B")), OFFERS)
        for number, entry in enumerate(entries)
    ]
    await file.save(votes[0], memfd(payload_of(0)), MAP)

    async def fill_the_disk() -> None:
        raise StoreError("no space")

    with pytest.raises(StoreError, match="no space"):
        await file.save(votes[1], memfd(payload_of(1)), MAP, fill_the_disk())
    kept = await file.load(memfd(bytes(8)), MAP)
    assert kept is not None
    assert (kept.promise, kept.results_held) == (votes[0], True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["promise", "promise.payload"]


async def test_vote_comes_back_with_its_payload_in_result(tmp_path: Path) -> None:
    entry = chain(1)[0].entry
    promise = Promise(RoundIndex(0), GENESIS, Attempt(1), Attempt(1), entry, (PeerId("A"), PeerId("B")), OFFERS)
    await PromiseFile(tmp_path).save(promise, memfd(payload_of(0)), MAP)
    empty = memfd(bytes(8))
    kept = await PromiseFile(tmp_path).load(empty, MAP)
    assert kept is not None
    assert kept.promise == promise
    assert kept.results_held
    assert os.pread(empty, 8, 0) == payload_of(0)


async def test_payload_that_is_not_the_one_voted_for_is_not_held(tmp_path: Path) -> None:
    entry = chain(1)[0].entry
    promise = Promise(RoundIndex(0), GENESIS, Attempt(0), Attempt(0), entry, (PeerId("A"),), OFFERS[:1])
    await PromiseFile(tmp_path).save(promise, memfd(payload_of(0, b"other")), MAP)
    kept = await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP)
    assert kept is not None
    assert not kept.results_held


async def test_nothing_promised_yet(tmp_path: Path) -> None:
    assert await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP) is None


async def test_damaged_promise_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "promise").write_bytes(b"\xc1garbage")
    with pytest.raises(StoreError, match="remove it"):
        await PromiseFile(tmp_path).load(memfd(bytes(8)), MAP)


async def test_what_was_taken_back_is_there_after_a_restart_and_a_damaged_file_is_no_empty_one(tmp_path: Path) -> None:
    assert await PromiseFile(tmp_path).load_reverts() == ()
    vote = SignedVote(PeerId("A"), Attempt(2**31 - 1), 7, Signature(b"key", b"right"))
    kept = (TakeBack(RoundIndex(3), GENESIS, (vote,)),)
    await PromiseFile(tmp_path).save_reverts(kept)
    assert await PromiseFile(tmp_path).load_reverts() == kept
    (tmp_path / "reverts").write_bytes(b"damaged")
    with pytest.raises(StoreError, match="reverts is damaged"):
        await PromiseFile(tmp_path).load_reverts()
