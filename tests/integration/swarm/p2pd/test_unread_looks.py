"""The looks at what peers do not read are as far apart as they say, also where p2pd answered late."""

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Set
from pathlib import Path

import pytest

from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd import supervisor
from tests.integration.swarm.sites import sites, until

pytestmark = pytest.mark.processes

EVERY_S = 1.0
EARLY_S = 0.1
"""Of timers."""


async def test_a_late_answer_brings_no_look_nearer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ASK_EVERY_S", EVERY_S)
    looked_at: list[float] = []
    loop = asyncio.get_running_loop()

    async def look(connected: Set[PeerId]) -> None:
        looked_at.append(loop.time())
        if len(looked_at) == 1:
            os.kill(site.node.p2pd_pid, signal.SIGSTOP)
            loop.call_later(1.8 * EVERY_S, os.kill, site.node.p2pd_pid, signal.SIGCONT)

    async def has_looked() -> bool:
        return len(looked_at) == 4

    async with sites(tmp_path, 1) as (site,):
        monkeypatch.setattr(site.node, "end_unread", look)
        watch = asyncio.create_task(supervisor._kill_if_it_hangs(site.node), name="p2pd's answers")
        await until(has_looked, "four looks")
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch
    assert min(later - at for at, later in itertools.pairwise(looked_at)) > EVERY_S - EARLY_S
