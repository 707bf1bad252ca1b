"""How long a look at shown shares may take, who is looked at first, and what that costs (X14)."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.errors import PeerError, StoreError
from dilocoxd.ids import Digest, PeerId, RoundIndex
from dilocoxd.machines.audit.claims import STRANGERS_IN_VAIN_MAX
from dilocoxd.machines.round.inputs import EntryFalse
from dilocoxd.wire.entry import entry_hash
from dilocoxd.wire.frames import PIECE_BYTES
from dilocoxd.wire.messages import FalseSum
from tests.unit.daemon.audit.test_auditor import OWNER
from tests.unit.daemon.audit.test_disproofs import TELLER, Site, finder, finds, hearer, hears, shown_as_false


def slowly(site: Site, seconds: float, num_bytes: int, pieces: int = 1) -> None:
    """Each share comes in so many pieces, each after `seconds` of the loop's clock, which stands otherwise, and of
    `num_bytes`."""
    passed = [0.0]

    async def pace(peer: PeerId, resource: str, on_bytes: Callable[[int], None]) -> None:
        loop = asyncio.get_running_loop()
        if passed[0] == 0.0:
            began = loop.time()
            loop.time = lambda: began + passed[0]  # type: ignore[method-assign]
        for _ in range(pieces):
            passed[0] += seconds
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # a time-out that is over ends the look here
            on_bytes(num_bytes)

    site.pace = pace


def test_who_shows_slowly_but_steadily_is_looked_at_to_the_end(tmp_path: Path) -> None:
    """Three shares of ten pieces at twice the least speed of a frame: a minute, and the lie is proved."""
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)
    slowly(second, 2.0, PIECE_BYTES, pieces=10)
    auditor = hears(second, claim)
    assert second.told == [EntryFalse(RoundIndex(0), Digest(claim.entry_hash), (OWNER,))]
    assert auditor.counts.shown == 1 and not auditor.disproofs.claims._silenced


@pytest.mark.parametrize(("seconds", "num_bytes"), [(7.0, PIECE_BYTES), (14.0, 1), (20.0, 0)])
def test_who_trickles_is_not_heard_for_a_while(tmp_path: Path, seconds: float, num_bytes: int) -> None:
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)
    slowly(second, seconds, num_bytes, pieces=10)
    auditor = hears(second, claim)
    assert TELLER in auditor.disproofs.claims._silenced and not second.told and not second.bad
    assert auditor.counts.bytes_received > 0, "what was spent on it is counted"
    assert not second.leftovers()


def test_sound_result_that_is_shown_at_the_last_moment_is_summed_and_refuted(tmp_path: Path) -> None:
    """Else the time would be over before it is judged, and who showed it could do so again and again."""
    first = finder(tmp_path, lie_in=None)
    digest = entry_hash(first.audited.entry)
    shown_as_false(first, tmp_path / "shown")
    second = hearer(tmp_path, first)
    slowly(second, 7.45, PIECE_BYTES)
    hears(second, FalseSum(RoundIndex(0), digest, 1))
    assert [(peer, rule) for peer, rule, _ in second.bad] == [(TELLER, "bad_evidence")]


def test_who_shows_slowly_does_not_keep_the_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.daemon.audit.auditor.LOOK_ALONE_S", 0.05)
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)

    async def pace(peer: PeerId, resource: str, on_bytes: Callable[[int], None]) -> None:
        if peer == OWNER:
            await asyncio.sleep(3600.0)

    second.pace = pace

    async def run() -> None:
        auditor = second.auditor()
        task = asyncio.create_task(auditor._follow_claims())
        auditor.hear(OWNER, claim)
        auditor.hear(TELLER, claim)
        async with asyncio.timeout(60.0):
            while not auditor.counts.shown:
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(run())
    assert second.told


def test_new_ids_together_have_few_looks_and_others_are_looked_at_all_the_same(tmp_path: Path) -> None:
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)
    asked: list[str] = []

    async def pace(peer: PeerId, resource: str, on_bytes: Callable[[int], None]) -> None:
        asked.append(peer)
        if peer != TELLER:
            raise PeerError("silent")

    second.pace = pace

    async def run() -> None:
        auditor = second.auditor()
        for number in range(40):
            auditor.hear(PeerId(f"new{number}"), claim)
        auditor.hear(TELLER, claim)
        task = asyncio.create_task(auditor._follow_claims())
        await asyncio.sleep(0)
        for number in range(40, 80):
            while auditor._claimed.is_set() or auditor._looks:
                await asyncio.sleep(0.01)
            auditor.hear(PeerId(f"new{number}"), FalseSum(claim.round, claim.entry_hash, 2))
        task.cancel()

    asyncio.run(run())
    assert asked[:3] == [TELLER] * 3 and second.told
    assert len(asked) - 3 <= STRANGERS_IN_VAIN_MAX


def test_nothing_is_fetched_for_an_entry_whose_chain_our_disk_lacks(tmp_path: Path) -> None:
    """The fault is ours, so the claim is heard again: each time it would cost all shares."""
    first = finder(tmp_path)
    claim = finds(first)
    second = hearer(tmp_path, first)
    asked: list[str] = []

    async def pace(peer: PeerId, resource: str, on_bytes: Callable[[int], None]) -> None:
        asked.append(resource)

    second.pace = pace

    def dropped(first: int, end: int) -> list[Any]:
        raise StoreError("retention dropped it")

    second.log.entries = dropped  # type: ignore[method-assign, assignment]
    hears(second, claim)
    assert not asked and not second.bad and not second.told


def test_entry_to_which_our_chain_does_not_lead_is_judged_by_nobody(tmp_path: Path) -> None:
    """What a sum depends on beside the shares is in the chain before it, which a fork may have changed meanwhile."""
    site = finder(tmp_path)
    other = replace(site.audited, entry=replace(site.audited.entry, parent=bytes(range(32))))
    found = asyncio.run(site.auditor().audit(other, 5.0))
    assert {finding.verdict for finding in found} == {"unproved"} and "leads to entry 0 no more" in found[0].why
    assert not site.alerts and not site.site.num_sums
