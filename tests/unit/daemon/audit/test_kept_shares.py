"""What others fetch of a contribution to check a sum: bytes of kept work, under the root that was offered. X13."""

import asyncio
import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest

from dilocoxd.daemon.audit.kept_shares import KeptShares, share_lengths
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.peers.serving import Library
from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import Digest, PeerId, PhaseId, RunId
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, Piece
from dilocoxd.store.log import EntryLog
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.wire.entry import genesis_hash, payload_root

LENGTHS = (3000, 1000, 17)
RUN = RunId("run-0123")
ASKER = PeerId("Qmasker")


def keep(folder: Path, phase: int, payload: bytes, *, num_passes: int = 1, content: int = 1) -> None:
    fd = os.memfd_create("payload")
    try:
        os.pwrite(fd, payload, 0)
        items = tuple((PhaseId(phase - back), 1) for back in reversed(range(content)))
        work = KeptWork(PhaseId(phase), 7, Digest(bytes(32)), num_passes, content=items)
        KeptWorkStore(folder).keep(work, [Piece(fd, 0, len(payload))])
    finally:
        os.close(fd)


def library(folder: Path, shares: KeptShares | None) -> Library:
    log = EntryLog(folder / "log", RUN, genesis_hash(RUN, bytes(32)))
    return Library(b"{}", log, folder / "snapshots", shares=shares)


async def read(found: Library, name: str) -> bytes:
    served: Served = await found.open(ASKER, name)
    try:
        data = os.pread(served.region.fd, served.region.length, served.region.offset)
    finally:
        served.close()
    assert hashlib.sha256(data).digest() == served.sha256
    return data


def cut(payload: bytes) -> list[bytes]:
    return [payload[:3000], payload[3000:4000], payload[4000:4017]]


async def test_what_is_served_has_the_root_of_the_offer(tmp_path: Path) -> None:
    """Also with more behind the payload (records), a longer front, and after the file was replaced."""
    payload = os.urandom(sum(LENGTHS))
    root = payload_root(tuple(hashlib.sha256(part).digest() for part in cut(payload)))
    found = library(tmp_path, KeptShares(tmp_path / "work", lambda: LENGTHS))
    for content in (1, 3):
        keep(tmp_path / "work", 12, payload + b"records", content=content)
        hashes = await read(found, "shares/12")
        assert payload_root(tuple(hashes[first : first + 32] for first in range(0, 96, 32))) == root
        assert [await read(found, f"share/12/{segment}") for segment in range(3)] == cut(payload)


@pytest.mark.parametrize("name", ["shares/13", "share/13/0", "share/12/3", "share/12/99999", "share/../0", "shares/-1"])
async def test_what_is_not_kept_is_not_found(tmp_path: Path, name: str) -> None:
    keep(tmp_path / "work", 12, os.urandom(sum(LENGTHS)))
    with pytest.raises(WireError, match="not_found"):
        await library(tmp_path, KeptShares(tmp_path / "work", lambda: LENGTHS)).open(ASKER, name)


async def test_runs_without_audits_serve_no_shares(tmp_path: Path) -> None:
    keep(tmp_path / "work", 12, os.urandom(sum(LENGTHS)))
    with pytest.raises(WireError, match="not_found"):
        await library(tmp_path, None).open(ASKER, "share/12/0")


def test_payloads_of_several_passes_and_damaged_files_are_refused(tmp_path: Path) -> None:
    shares = KeptShares(tmp_path, lambda: LENGTHS)
    keep(tmp_path, 1, os.urandom(sum(LENGTHS)), num_passes=2)
    keep(tmp_path, 2, os.urandom(sum(LENGTHS) - 1))
    (tmp_path / "3.work").write_bytes(b"nonsense")
    for phase in (1, 2, 3):
        with pytest.raises(StoreError):
            shares.place(phase, 0)
    with pytest.raises(FileNotFoundError):
        shares.hashes(4)
    unknown = KeptShares(tmp_path, lambda: share_lengths(PayloadMaps({})))
    with pytest.raises(StoreError):
        unknown.place(1, 0)


def racing(folder: Path, meanwhile: Callable[[], object]) -> KeptShares:
    """`meanwhile` happens once, when a front has been read and its payload has not."""
    pending = [meanwhile]

    def lengths() -> tuple[int, ...]:
        if pending:
            pending.pop()()
        return LENGTHS

    return KeptShares(folder, lengths)


def hashes_of(payload: bytes) -> bytes:
    return b"".join(hashlib.sha256(part).digest() for part in cut(payload))


def test_hashes_are_of_one_file_while_another_takes_its_place(tmp_path: Path) -> None:
    """What the next attempt keeps has a longer front: its payload does not lie where that of the last one did."""
    payload = os.urandom(sum(LENGTHS))
    keep(tmp_path, 12, payload)
    shares = racing(tmp_path, lambda: keep(tmp_path, 12, payload + b"records", content=3))
    assert [shares.hashes(12), shares.hashes(12)] == [hashes_of(payload)] * 2


def test_hashes_of_work_that_retention_drops_meanwhile_are_taken_to_the_end(tmp_path: Path) -> None:
    payload = os.urandom(sum(LENGTHS))
    keep(tmp_path, 12, payload)
    shares = racing(tmp_path, lambda: (tmp_path / "12.work").unlink())
    assert shares.hashes(12) == hashes_of(payload)
    with pytest.raises(FileNotFoundError):
        shares.hashes(12)


def test_hashes_are_given_also_when_many_others_were_asked_for_meanwhile(tmp_path: Path) -> None:
    """Threads of other askers may push them out before they are returned."""
    payload = os.urandom(sum(LENGTHS))
    keep(tmp_path, 12, payload)
    shares = KeptShares(tmp_path, lambda: LENGTHS)

    class Crowded(OrderedDict[tuple[int, ...], bytes]):
        def __setitem__(self, key: tuple[int, ...], value: bytes) -> None:
            super().__setitem__(key, value)
            super().clear()

    shares._hashes = Crowded()
    assert shares.hashes(12) == hashes_of(payload)


def test_one_asker_gets_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dilocoxd.daemon.peers import serving

    monkeypatch.setattr(serving, "BUDGET_WAIT_S", 0.0)
    monkeypatch.setattr(serving, "BUDGET_POLL_S", 0.0)
    keep(tmp_path / "work", 12, os.urandom(sum(LENGTHS)))
    found = library(tmp_path, KeptShares(tmp_path / "work", lambda: LENGTHS))
    found._share_reads._clock = lambda: 0.0

    async def ask() -> None:
        for _ in range(round(serving.SHARE_EACH.burst) + 1):
            await read(found, "share/12/2")

    with pytest.raises(WireError, match="busy"):
        asyncio.run(ask())
