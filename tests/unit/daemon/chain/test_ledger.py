"""Log and state stay together: replay at start, digests compared, snapshots believed only when they are voted for."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.chain.ledger import FinishedDownload, Ledger, genesis_view
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.site.interface import SiteSettings
from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.machines.round.outputs import Settlement
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.wire.entry import SignedEntry, entry_hash
from tests.harness.synthetic import fake_site
from tests.unit.daemon.chain.chain_maker import GENESIS, RUN, chain

ME = PeerId("A")


def payload(index: int) -> bytes:
    return (hashlib.sha256(index.to_bytes(8, "big")).digest() * 125)[: fake_site.TOTAL]


def true_chain(length: int) -> list[SignedEntry]:
    """A chain whose state digests are those of the fake site."""
    digest, parent, entries = fake_site.GENESIS, GENESIS, []
    for signed in chain(length):
        index = signed.entry.round
        data = payload(index)
        parts = (data[: fake_site.LENGTHS[0]], data[fake_site.LENGTHS[0] :])
        hashes = tuple(hashlib.sha256(part).digest() for part in parts)
        entry = replace(signed.entry, parent=parent, state_digest=digest, result_hashes=hashes)
        entries.append(replace(signed, entry=entry))
        parent, digest = entry_hash(entry), Digest(hashlib.sha256(digest + data).digest())
    return entries


def append(log: EntryLog, entries: list[SignedEntry]) -> None:
    for signed in entries:
        fd = os.memfd_create("payload")
        os.pwrite(fd, payload(signed.entry.round), 0)
        log.append(signed, PayloadSource(fd, 0, fake_site.LENGTHS))
        os.close(fd)


def make(folder: Path) -> tuple[Ledger, fake_site.FakeSite]:
    site = fake_site.FakeSite(SiteSettings(folder, "arrival", 1, 1, 0), lambda event: None)
    log = EntryLog(folder / "log", RUN, GENESIS)
    return Ledger(site, log, genesis_view(RUN, GENESIS, inner_steps=1, lowrank_r=0), ME), site


async def opened(folder: Path, entries: list[SignedEntry]) -> tuple[Ledger, fake_site.FakeSite]:
    ledger, site = make(folder)
    append(ledger.log, entries)
    assert await ledger.open(PayloadMaps({0: (fake_site.LENGTHS,)}), []) == []
    return ledger, site


async def test_state_is_replayed_from_the_log(tmp_path: Path) -> None:
    entries = true_chain(4)
    ledger, _ = await opened(tmp_path, entries)
    assert ledger.chain.height == 4
    assert ledger.chain.head == entry_hash(entries[-1].entry)
    assert ledger.own_rounds == [0, 1, 2, 3]
    assert max(await ledger.own_phases()) == 3


async def test_empty_log_is_the_genesis_state(tmp_path: Path) -> None:
    ledger, _ = await opened(tmp_path, [])
    assert (ledger.chain.height, ledger.chain.head, ledger.chain.state_digest) == (0, GENESIS, fake_site.GENESIS)


async def test_entry_voted_on_other_bits_is_not_applied(tmp_path: Path) -> None:
    entries = chain(1)
    ledger, _ = make(tmp_path)
    fd = os.memfd_create("payload")
    os.pwrite(fd, payload(0), 0)
    data = payload(0)
    parts = (data[: fake_site.LENGTHS[0]], data[fake_site.LENGTHS[0] :])
    wrong = replace(entries[0].entry, result_hashes=tuple(hashlib.sha256(part).digest() for part in parts))
    ledger.log.append(replace(entries[0], entry=wrong), PayloadSource(fd, 0, fake_site.LENGTHS))
    os.close(fd)
    with pytest.raises(StoreError, match="voted for on a state"):
        await ledger.open(PayloadMaps({0: (fake_site.LENGTHS,)}), [])


async def test_applying_moves_the_view_and_settles(tmp_path: Path) -> None:
    entries = true_chain(2)
    ledger, _ = await opened(tmp_path, entries[:1])
    append(ledger.log, entries[1:])
    settle = Settlement(entries[1].entry.contributions[0].phase, ())
    await ledger.apply_logged(RoundIndex(1), settle)
    assert ledger.chain.height == 2
    assert ledger.chain.weight == 40


def download(name: str) -> FinishedDownload:
    async def publish() -> Path:
        return Path(name)

    return FinishedDownload(name, publish)


async def test_snapshot_that_nobody_voted_for_is_refused_and_the_log_stays(tmp_path: Path) -> None:
    entries = true_chain(4)
    ledger, site = await opened(tmp_path, [])
    site.snapshots["good"] = (RoundIndex(3), Digest(entries[3].entry.state_digest))
    site.snapshots["bad"] = (RoundIndex(3), Digest(b"x" * 32))
    with pytest.raises(StoreError, match="voted on"):
        await ledger.adopt(download("bad"), entries[3].entry, entries[:3])
    assert ledger.log.height == 0
    await ledger.adopt(download("good"), entries[3].entry, entries[:3])
    assert ledger.chain.height == 3
    assert not ledger.log.has_payload(0)
    append(ledger.log, entries[3:])
    await ledger.apply_logged(RoundIndex(3), None)
    assert ledger.chain.height == 4


async def test_contribution_that_a_snapshot_skips_is_settled_only_once_the_snapshot_has_proved_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = true_chain(4)
    ledger, site = await opened(tmp_path, [])
    site.snapshots["good"] = (RoundIndex(3), Digest(entries[3].entry.state_digest))
    site.snapshots["bad"] = (RoundIndex(3), Digest(b"x" * 32))
    settle = Settlement(entries[1].entry.contributions[0].phase, ())
    settled: list[tuple[int, int]] = []
    load = site.load_state

    async def noting(directory: str, **rest: Any) -> Any:
        settled.extend([(rest["settles"], ledger.log.height)] if rest.get("settles") is not None else [])
        return await load(directory, **rest)

    monkeypatch.setattr(site, "load_state", noting)
    with pytest.raises(StoreError, match="voted on"):
        await ledger.adopt(download("bad"), entries[3].entry, entries[:3], settle)
    assert settled == []
    await ledger.adopt(download("good"), entries[3].entry, entries[:3], settle)
    assert settled == [(settle.phase, 3)] and ledger.chain.height == 3, "settled before the log has its entry"


async def test_newcomer_that_lost_its_snapshot_starts_again(tmp_path: Path) -> None:
    entries = true_chain(4)
    ledger, _ = make(tmp_path)
    for signed in entries[:3]:
        ledger.log.append_bare(signed, fake_site.LENGTHS)
    problems = await ledger.open(PayloadMaps({0: (fake_site.LENGTHS,)}), [])
    assert "cut at 0" in problems[0]
    assert ledger.chain.height == 0


async def test_who_died_while_a_snapshot_was_taken_over_goes_on_from_its_own(tmp_path: Path) -> None:
    """Retention has dropped the oldest payloads; of the entries that were to be skipped only one was written."""
    entries = true_chain(5)
    ledger, site = make(tmp_path)
    append(ledger.log, entries[:4])
    ledger.log.drop_payloads(2)
    ledger.log.append_bare(entries[4], fake_site.LENGTHS)
    own = tmp_path / "snapshots" / "2"
    site.snapshots[str(own)] = (RoundIndex(2), Digest(entries[2].entry.state_digest))
    problems = await ledger.open(PayloadMaps({0: (fake_site.LENGTHS,)}), [own])
    assert "cut at 4" in problems[0]
    assert ledger.chain.height == ledger.log.height == 4
