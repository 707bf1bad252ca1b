"""Forty peers that do not exist, told by one who does: nobody waits for them, and none of them coordinates (H1)."""

import asyncio
import contextlib
import math
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery.identity import Identity, create
from dilocoxd.wire.messages import Records
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_same_bits
from tests.adversary.stranger import Stranger, stranger
from tests.harness.running.run_directories import OPEN, found_run, join_run
from tests.harness.running.sites import SiteProcess, sites

pytestmark = pytest.mark.processes

PATIENCE_S = 90.0
GHOSTS = 40
EVERY_S = 1.0
UNDER_ATTACK_S, ENTRIES = 12.0, 5
"""An honest pair commits about one entry a second; on a busy machine it may take longer for so many."""
STILL_S = 20.0
"""One without the mend commits none in 90 s once it has heard of forty that stand where it stands."""
HOLLOW_PHASE_S = 4.0
"""They must be told of its new head before a phase ends, however busy the machine is."""


async def haunt(
    folder: Path, victim: SiteProcess, *, entries: float = math.inf, still_s: float = STILL_S
) -> tuple[int, bool]:
    """Tell a site of GHOSTS peers at its own head, again and again, for PATIENCE_S. Entries that it commits meanwhile,
    and whether it came to stand still; who believes in none of them is let go after UNDER_ATTACK_S and `entries`."""
    async with stranger(folder, victim) as me:
        ghosts = [create(folder / f"ghost{number}.key") for number in range(GHOSTS)]
        peer = await me.meet(victim)
        begun = at = int(victim.state()["height"])
        clock = asyncio.get_running_loop().time
        started = moved = clock()
        while clock() - moved < still_s:
            await tell(me, peer, ghosts, await asyncio.to_thread(victim.state))
            if (height := int(victim.state()["height"])) != at:
                at, moved = height, clock()
            is_seen_through = at - begun >= entries and live_peers(victim) < GHOSTS
            if clock() - started > (UNDER_ATTACK_S if is_seen_through else PATIENCE_S):
                return at - begun, False
        return at - begun, True


def live_peers(victim: SiteProcess) -> int:
    return int(victim.state()["peers"]["live"])


async def tell(me: Stranger, peer: PeerId, ghosts: list[Identity], status: dict[str, Any]) -> None:
    """Newer records of all of them, which stand where the victim stands."""
    tip = {"chain_head": bytes.fromhex(status["chain_head"]), "chain_height": status["height"]}
    records = tuple(me.record(ghost, milli_steps_per_s=1000, **tip) for ghost in ghosts)
    with contextlib.suppress(PeerError):  # banned, or refused as too much
        await me.channel.call(peer, Records(records, reply=False))
    await asyncio.sleep(EVERY_S)


def test_peers_that_do_not_exist_keep_nobody_from_rounds(tmp_path: Path) -> None:
    site, hollow = found_run(tmp_path, "a", *OPEN), found_run(tmp_path, "h", *OPEN)
    with sites(site, hollow):
        site.start_without_model(0.5)
        patched(hollow, "hole_ghosts", phase_s=HOLLOW_PHASE_S)
        site.wait_height(1, PATIENCE_S)
        other = join_run(tmp_path, "b", site)
        with sites(other):
            other.start_without_model(0.5)
            other.wait_height(site.state()["height"], PATIENCE_S)
            for victim in (site, hollow):
                victim.wait_height(1, PATIENCE_S)
            # A busy machine may itself make no entry for STILL_S.
            entries, is_still = asyncio.run(haunt(tmp_path / "sa", site, entries=ENTRIES, still_s=PATIENCE_S))
            assert entries >= ENTRIES and not is_still
            _, is_still = asyncio.run(haunt(tmp_path / "sh", hollow))
            assert is_still, "the attack works without the mend"
            assert_same_bits(site, other)
