"""A member repeats an offer that is refused, for ever: beyond a budget each waits for its turn, and nobody else does.
S10.7."""

import asyncio
import time
from pathlib import Path

import pytest

from dilocoxd.ids import Attempt, PeerId
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.wire.messages import SegmentHeader
from tests.adversary.daemon import patched
from tests.adversary.judge import PATIENCE_S, assert_rounds_go_on
from tests.adversary.patches.members.few_empty import BURST, PER_S
from tests.harness.running.run_directories import OPEN, found_run
from tests.harness.running.sites import SiteProcess, sites
from tests.integration.swarm.members import Member, running
from tests.integration.swarm.sites import memory, until

pytestmark = pytest.mark.processes

AT_ONCE = 8
DATA = ("--set", f"network.data_connections={AT_ONCE}")
ENOUGH = 6 * BURST
"""Answers: more than anybody gets within QUICK_S."""
QUICK_S = 30.0


async def repeat_without_end(me: Member, peer: PeerId, header: SegmentHeader) -> tuple[int, float]:
    """The same offer, until ENOUGH answers or QUICK_S: (answers, seconds)."""
    begun, answers = time.monotonic(), 0

    async def repeat() -> None:
        nonlocal answers
        while answers < ENOUGH and time.monotonic() - begun < QUICK_S:
            with pytest.raises(Refused, match="not_wanted"):
                await me.swarm.bulk_out.send_segment(peer, header, source, attempts=1)
            answers += 1

    with memory(header.segment_bytes) as source:
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(repeat(), name=f"repeats {number}")
    return answers, time.monotonic() - begun


async def attack(folder: Path, victim: SiteProcess) -> tuple[int, float, PeerId]:
    """What a member gets that offers what nobody asked for, by data connections, and who it is."""
    manifest, _ = open_run_dir(victim.run_dir).load()
    me = Member(folder, manifest, bootstrap=(str(victim.state()["join_address"]),))
    async with running(me):
        peer, data = PeerId(str(victim.says("peer_id"))), me.swarm.data
        assert data is not None
        await until(lambda: data.view(peer).is_data, "data connections")
        header = SegmentHeader(
            str(manifest.run_id), 0, Attempt(0), 0, 0, 0, 0, 1000, 0, 1000, bytes(32), bytes(32), ()
        )  # fmt: skip
        answers, seconds = await repeat_without_end(me, peer, header)
        assert data.view(peer).is_data, "nothing broke"
        return answers, seconds, me.peer_id


def test_who_repeats_what_is_refused_gets_its_part_and_no_more(tmp_path: Path) -> None:
    site, hollow = (found_run(tmp_path, name, *OPEN, *DATA) for name in ("a", "h"))
    with sites(site, hollow):
        patched(site, "members.few_empty", phase_s=0.5)
        patched(hollow, "hole_room", phase_s=0.5)
        found = {}
        for victim in (site, hollow):
            victim.wait_height(2, PATIENCE_S)
            answers, seconds, liar = asyncio.run(attack(tmp_path / f"m{victim.name}", victim))
            found[victim.name] = answers - (BURST + PER_S * seconds)
            kinds = victim.state()["bad_input"].get(liar, {})
            assert bool(kinds.get("empty_exchanges")) == (victim is site) and "banned" not in kinds
        assert_rounds_go_on(site)
    assert found["a"] <= 1 + AT_ONCE < found["h"], "answers beyond the budget of one peer"
