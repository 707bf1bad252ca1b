"""Where a site that comes back finds how much its newest contribution was counted: kept work, the log, or nowhere."""

import asyncio
import threading
from pathlib import Path

import pytest

from dilocoxd.daemon.chain.owed_work import WorkKeeper
from dilocoxd.daemon.chain.payload_map import PayloadMap, PayloadMaps
from dilocoxd.ids import Digest, PhaseId
from dilocoxd.machines.phase.settings import CountedIn
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore, Piece, work_path
from dilocoxd.telemetry.events import EventLog
from dilocoxd.wire.entry import entry_hash
from tests.harness.synthetic import fake_site
from tests.unit.daemon.chain.test_ledger import ME, opened, true_chain

NEWEST = PhaseId(3)
KEPT, NOWHERE = CountedIn(NEWEST, is_kept=True), CountedIn(NEWEST)


@pytest.mark.parametrize(
    ("given_to", "num_passes", "has_payload", "is_centered", "expected"),
    [
        ("this", 1, True, False, KEPT),
        ("this", 2, False, False, KEPT),
        ("another", 1, True, False, "log"),
        ("another", 1, True, True, KEPT),
        ("another", 1, False, False, KEPT),
        ("another", 2, False, False, NOWHERE),
        ("", 1, True, False, "log"),
        ("", 1, True, True, NOWHERE),
        ("", 1, False, False, NOWHERE),
    ],
)
async def test_the_entry_itself_comes_before_another_attempt(
    tmp_path: Path, given_to: str, num_passes: int, has_payload: bool, is_centered: bool, expected: CountedIn | str
) -> None:
    entries = true_chain(4)
    ledger, site = await opened(tmp_path, entries)
    ledger.payloads = PayloadMaps({0: (fake_site.LENGTHS,)}, center_start=8192 * is_centered)
    store = KeptWorkStore(tmp_path / "work")
    if given_to:
        digest = entry_hash(entries[3].entry) if given_to == "this" else Digest(bytes(32))
        store.keep(KeptWork(NEWEST, 3, digest, num_passes, content=((NEWEST, 1),)), [])
    if not has_payload:
        ledger.log.drop_payloads(4)
    start = await WorkKeeper(ME, site, store, tmp_path / "feedback", EventLog(None)).starting_point(ledger)
    assert start.own_phases == {0, 1, 2, 3}
    assert start.kept == ({NEWEST: {NEWEST: 1}} if given_to else {})
    if expected == "log":
        results = ledger.log.payload(3)
        expected = CountedIn(NEWEST, False, results.path, results.offset, 0, entries[3].entry.place_of(ME))
    assert start.newest == expected


@pytest.mark.parametrize("has_payload", [True, False])
async def test_kept_work_that_is_damaged_behind_its_front_says_nothing(tmp_path: Path, has_payload: bool) -> None:
    entries = true_chain(4)
    ledger, site = await opened(tmp_path, entries)
    store = KeptWorkStore(tmp_path / "work")
    with (tmp_path / "payload").open("wb+") as payload:
        payload.write(bytes(1000))
        payload.flush()
        work = KeptWork(NEWEST, 3, entry_hash(entries[3].entry), content=((NEWEST, 1),))
        store.keep(work, [Piece(payload.fileno(), 0, 1000)])
    path = work_path(tmp_path / "work", NEWEST)
    path.write_bytes(path.read_bytes().replace(bytes(1000), bytes(999) + b"x"))
    if not has_payload:
        ledger.log.drop_payloads(4)
    newest = (await WorkKeeper(ME, site, store, tmp_path / "feedback", EventLog(None)).starting_point(ledger)).newest
    assert newest is not None
    assert not newest.is_kept
    assert bool(newest.results_path) == has_payload, "the log still says it"


@pytest.mark.parametrize("damage", ["other version", "cut off", "copy"])
async def test_kept_work_that_cannot_be_read_is_told_of(tmp_path: Path, damage: str) -> None:
    """We voted for entries that name it: what the saved error feedback holds may come into the chain with it."""
    ledger, site = await opened(tmp_path, true_chain(4))
    store, voted = KeptWorkStore(tmp_path / "work"), PhaseId(NEWEST + 1)
    for phase in (PhaseId(2), voted):
        path = work_path(tmp_path / "work", phase)
        store.keep(KeptWork(phase, 3, Digest(bytes(32)), content=((phase, 1),)), [])
        match damage:
            case "other version":
                path.write_bytes(b"dlxwork3" + path.read_bytes()[8:])
            case "cut off":
                path.write_bytes(path.read_bytes()[:-1])
            case _:
                store.keep(KeptWork(PhaseId(3), 3, Digest(bytes(32)), content=((PhaseId(3), 1),)), [])
                path.write_bytes(work_path(tmp_path / "work", PhaseId(3)).read_bytes())
    events = EventLog(tmp_path / "events")
    start = await WorkKeeper(ME, site, store, tmp_path / "feedback", events).starting_point(ledger)
    assert start.kept.keys() == ({3} if damage == "copy" else set())
    assert start.unreadable == {2, voted}
    told = (tmp_path / "events").read_text()
    assert told.count("contribution.refused") == 1 and f'"phase":{voted},' in told and "another version" in told


async def test_a_chain_that_never_named_us_says_nothing(tmp_path: Path) -> None:
    ledger, site = await opened(tmp_path, [])
    start = await WorkKeeper(
        ME, site, KeptWorkStore(tmp_path / "work"), tmp_path / "feedback", EventLog(None)
    ).starting_point(ledger)
    assert (start.own_phases, start.newest) == (frozenset(), None)


async def test_start_clears_what_a_crash_left_unfinished(tmp_path: Path) -> None:
    ledger, site = await opened(tmp_path, true_chain(1))
    left = tmp_path / "work" / "next.work.tmp"
    left.parent.mkdir()
    left.write_bytes(bytes(100))
    await WorkKeeper(ME, site, KeptWorkStore(tmp_path / "work"), tmp_path / "feedback", EventLog(None)).starting_point(
        ledger
    )
    assert not left.exists()


async def test_a_slow_disk_keeps_one_thread_from_those_who_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment that is given asks to be written early; threads are few, and others read what is sent."""
    _, site = await opened(tmp_path, true_chain(1))
    keeper, goes_on, begun = (
        WorkKeeper(ME, site, KeptWorkStore(tmp_path), tmp_path / "feedback", EventLog(None)),
        threading.Event(),
        list[int](),
    )

    def slow(kept: KeptWorkStore, piece: Piece, at: int, num_items: int) -> None:
        begun.append(at)
        goes_on.wait(60)

    monkeypatch.setattr(KeptWorkStore, "keep_early", slow)
    async with asyncio.TaskGroup() as group:
        for segment in (0, 1) * 20:
            group.create_task(keeper.keep_early(PayloadMap((fake_site.LENGTHS,)), segment))
        while not begun:
            await asyncio.sleep(0)
        await asyncio.to_thread(len, "what is sent")
        assert begun == [0]
        goes_on.set()
    assert begun == [0, fake_site.LENGTHS[0], 0]
