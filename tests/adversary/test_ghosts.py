"""Forty peers that do not exist, told by one who does: nobody waits for them, and none of them coordinates (H1)."""

import asyncio
import contextlib
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
UNDER_ATTACK_S = 12.0
STILL_S = 6.0
"""An honest pair commits about one entry a second; an attacked one without the mend none in 90 s, once it has heard of
forty that stand where it stands."""


async def haunt(folder: Path, victim: SiteProcess) -> tuple[int, bool]:
    """Tell a site of GHOSTS peers at its own head, again and again. Entries that it commits meanwhile, and whether it
    came to stand still; who does not is watched for UNDER_ATTACK_S, who is slow to hear of them as long as it takes."""
    async with stranger(folder, victim) as me:
        ghosts = [create(folder / f"ghost{number}.key") for number in range(GHOSTS)]
        peer = await me.meet(victim)
        begun = at = int(victim.status()["height"])
        clock = asyncio.get_running_loop().time
        started = moved = clock()
        while clock() - moved < STILL_S:
            await tell(me, peer, ghosts, await asyncio.to_thread(victim.status))
            if (height := int(victim.status()["height"])) != at:
                at, moved = height, clock()
            if clock() - started > UNDER_ATTACK_S and live_peers(victim) < GHOSTS:
                return at - begun, False  # it believes in none of them
            if clock() - started > PATIENCE_S:
                return at - begun, False
        return at - begun, True


def live_peers(victim: SiteProcess) -> int:
    return int(victim.status()["peers"]["live"])


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
        patched(hollow, "hole_ghosts", phase_s=0.5)
        site.wait_height(1, PATIENCE_S)
        other = join_run(tmp_path, "b", site)
        with sites(other):
            other.start_without_model(0.5)
            other.wait_height(site.status()["height"], PATIENCE_S)
            for victim in (site, hollow):
                victim.wait_height(1, PATIENCE_S)
            entries, is_still = asyncio.run(haunt(tmp_path / "sa", site))
            assert entries >= 5 and not is_still
            _, is_still = asyncio.run(haunt(tmp_path / "sh", hollow))
            assert is_still, "the attack works without the mend"
            assert_same_bits(site, other)
