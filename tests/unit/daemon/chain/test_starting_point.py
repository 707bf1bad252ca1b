"""Where a site that comes back finds how much its newest contribution was counted: kept work, the log, or nowhere."""

from pathlib import Path

import pytest

from dilocoxd.daemon.chain.owed_work import WorkKeeper
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.ids import Digest, PhaseId
from dilocoxd.machines.phase.settings import CountedIn
from dilocoxd.store.kept_work import KeptWork, KeptWorkStore
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
    start = await WorkKeeper(ME, site, store, EventLog(None)).starting_point(ledger)
    assert start.own_phases == {0, 1, 2, 3}
    assert start.kept == ({NEWEST: {NEWEST: 1}} if given_to else {})
    if expected == "log":
        results = ledger.log.payload(3)
        expected = CountedIn(NEWEST, False, results.path, results.offset, 0, entries[3].entry.place_of(ME))
    assert start.newest == expected


async def test_a_chain_that_never_named_us_says_nothing(tmp_path: Path) -> None:
    ledger, site = await opened(tmp_path, [])
    start = await WorkKeeper(ME, site, KeptWorkStore(tmp_path / "work"), EventLog(None)).starting_point(ledger)
    assert (start.own_phases, start.newest) == (frozenset(), None)
