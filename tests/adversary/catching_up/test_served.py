"""Somebody who asks for the log without end: it is looked up for it as often as for others, and no more (S10, M9)."""

import asyncio
import time
from pathlib import Path

import pytest

from dilocoxd.daemon.peers.serving import CHAIN_BYTES_MAX
from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.wire.entry import ENTRY_BYTES_MAX
from tests.adversary.daemon import patched
from tests.adversary.judge import PATIENCE_S, assert_rounds_go_on
from tests.adversary.patches.donors.small_log_budget import LOG_EACH
from tests.adversary.stranger import Stranger, stranger
from tests.harness.running.run_directories import OPEN, found_run
from tests.harness.running.sites import SiteProcess, sites

pytestmark = pytest.mark.processes

AT_ONCE = 16
SLACK = 1 + AT_ONCE
LONG_S = 60.0
"""So long whoever gets no more than its part asks: a busy machine needs much of it for ENOUGH answers to one without
budgets."""
ENOUGH = LOG_EACH.burst + LOG_EACH.per_s * LONG_S + SLACK + 1
"""Answers: more than anybody gets within LONG_S."""
REFUSALS = 2 * AT_ONCE
"""By then it has had its part, and each of its questions is refused in turn."""
OTHER_S = 3.0
"""Between questions of somebody else, who keeps within its part."""


async def ask_without_end(me: Stranger, peer: PeerId) -> tuple[int, float]:
    """For all entries, until ENOUGH answers, REFUSALS or LONG_S: (answers, seconds)."""
    begun, answers, refusals = time.monotonic(), 0, 0

    def is_over() -> bool:
        return answers >= ENOUGH or refusals >= REFUSALS or time.monotonic() - begun > LONG_S

    async def ask() -> None:
        nonlocal answers, refusals
        while not is_over():
            try:
                await me.fetch.fetch_bytes(peer, "chain/0", bytes_max=CHAIN_BYTES_MAX + ENTRY_BYTES_MAX)
            except (PeerError, WireError) as refused:
                assert "asked for more" in str(refused), refused
                refusals += 1
            else:
                answers += 1

    async with asyncio.TaskGroup() as group:
        for number in range(AT_ONCE):
            group.create_task(ask(), name=f"asks {number}")
    return answers, time.monotonic() - begun


async def greedy(folder: Path, victim: SiteProcess) -> tuple[int, float]:
    """What a member that asks without end gets; and somebody else gets an answer meanwhile."""
    async with stranger(folder / "greedy", victim) as me, stranger(folder / "other", victim) as other:
        peer = await me.greet(victim)
        await other.greet(victim)
        asking = asyncio.create_task(ask_without_end(me, peer))
        while not asking.done():
            assert await other.fetch.fetch_bytes(peer, "chain/0", bytes_max=CHAIN_BYTES_MAX + ENTRY_BYTES_MAX)
            await asyncio.wait([asking], timeout=OTHER_S)
        return await asking


def test_reader_without_end_gets_its_part_and_no_more(tmp_path: Path) -> None:
    site, hollow = found_run(tmp_path, "a", *OPEN), found_run(tmp_path, "h", *OPEN)
    with sites(site, hollow):
        patched(site, "donors.small_log_budget", phase_s=0.5)
        patched(hollow, "donors.small_log_budget,catching_up.hole_serving", phase_s=0.5)
        found = {}
        for victim in (site, hollow):
            victim.wait_height(1, PATIENCE_S)
            answers, seconds = asyncio.run(greedy(tmp_path / f"s{victim.name}", victim))
            found[victim.name] = answers - (LOG_EACH.burst + LOG_EACH.per_s * seconds)
        assert_rounds_go_on(site)
    assert found["a"] <= SLACK < found["h"], "answers beyond the budget of one peer"
