"""One vote, and a contributor that never offered it: such an entry takes no honest one's place. R25, TRUST C1."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from dilocoxd.ids import PeerId
from dilocoxd.store.rundir import open_run_dir
from tests.adversary.daemon import patched
from tests.adversary.forger import LAST_PHASE, forger
from tests.adversary.judge import assert_rounds_go_on
from tests.harness.running.run_directories import OPEN, found_run
from tests.harness.running.sites import SiteProcess, sites
from tests.harness.running.strikes import events_of
from tests.harness.running.training import log_of

pytestmark = pytest.mark.processes

PATIENCE_S = 240.0
PHASE_S = 3.0
"""Long enough for a forged tip to arrive before the next honest one."""


async def forge_until(folder: Path, victim: SiteProcess, is_over: Callable[[bool, PeerId], bool]) -> bool:
    """Forge at the victim's tip again and again, until this is so (of whether it took one, and our peer id)."""
    manifest, _ = open_run_dir(victim.run_dir).load()
    clock = asyncio.get_running_loop().time
    end = clock() + PATIENCE_S
    async with forger(folder, victim, manifest) as me:
        peer = await me.me.meet(victim)
        while clock() < end:
            # What it took may leave its chain again, when the payload of it is not to be had: its log tells at once.
            is_taken = await me.attack(victim, peer)
            for _ in range(5):
                if is_over(is_taken, me.me.identity.peer_id):
                    return True
                await asyncio.sleep(0.2)
    return False


def rejects(victim: SiteProcess, peer: PeerId) -> bool:
    """What this peer sent, for an offer that nobody made."""
    events = events_of(victim, "input.rejected")
    return any(event["peer"] == peer and event["code"] == "bad_offer" for event in events)


def test_entry_that_names_who_did_not_offer_takes_no_place(tmp_path: Path) -> None:
    site, hollow = found_run(tmp_path, "a", *OPEN), found_run(tmp_path, "h", *OPEN)
    with sites(site, hollow):
        site.start_without_model(PHASE_S)
        patched(hollow, "hole_offers", phase_s=PHASE_S)
        for victim in (site, hollow):
            victim.wait_height(2, PATIENCE_S)

        def is_rejected(is_taken: bool, peer: PeerId) -> bool:
            assert not is_taken, site.describe()
            return rejects(site, peer)

        assert asyncio.run(forge_until(tmp_path / "sa", site, is_rejected)), site.describe()
        assert asyncio.run(forge_until(tmp_path / "sh", hollow, lambda is_taken, _: is_taken)), hollow.describe()
        assert_rounds_go_on(site)
        assert [site.stop(), hollow.stop()] == [0, 0]
    assert all(one.phase != LAST_PHASE for signed in log_of(site).entries() for one in signed.entry.contributions)
    assert not events_of(site, "fork.resolved")
