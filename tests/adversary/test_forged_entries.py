"""One vote, and a contributor that never offered it: such an entry takes no honest one's place. R25, TRUST C1."""

import asyncio
from pathlib import Path

import pytest

from dilocoxd.store.rundir import open_run_dir
from tests.adversary.daemon import patched
from tests.adversary.forger import LAST_PHASE, forger
from tests.adversary.judge import assert_rounds_go_on
from tests.harness.running.run_directories import OPEN, found_run
from tests.harness.running.sites import SiteProcess, sites
from tests.harness.running.strikes import events_of
from tests.harness.running.training import log_of

pytestmark = pytest.mark.processes

PATIENCE_S = 90.0
PHASE_S = 3.0
"""Long enough for a forged tip to arrive before the next honest one."""


async def forge_until(folder: Path, victim: SiteProcess, what: str) -> bool:
    """Forge at the victim's tip again and again; whether this event of it came."""
    manifest, _ = open_run_dir(victim.run_dir).load()
    clock = asyncio.get_running_loop().time
    end = clock() + PATIENCE_S
    async with forger(folder, victim, manifest) as me:
        peer = await me.me.meet(victim)
        while clock() < end:
            await me.attack(victim, peer)
            for _ in range(5):
                await asyncio.sleep(0.2)
                if any(is_of(event, what, me.me.identity.peer_id) for event in events_of(victim)):
                    return True
    return False


def is_of(event: dict[str, object], what: str, forger_id: str) -> bool:
    """Left for a branch, or rejected what this peer sent."""
    if what == "left":
        return event["event"] == "fork.resolved" and bool(event["is_rolled_back"])
    return event["event"] == "input.rejected" and event["peer"] == forger_id and event["code"] == "bad_offer"


def test_entry_that_names_who_did_not_offer_takes_no_place(tmp_path: Path) -> None:
    site, hollow = found_run(tmp_path, "a", *OPEN), found_run(tmp_path, "h", *OPEN)
    with sites(site, hollow):
        site.start_without_model(PHASE_S)
        patched(hollow, "hole_offers", phase_s=PHASE_S)
        for victim, what in ((site, "rejected"), (hollow, "left")):
            victim.wait_height(2, PATIENCE_S)
            assert asyncio.run(forge_until(tmp_path / f"s{victim.name}", victim, what)), victim.describe()
        assert_rounds_go_on(site)
        assert [site.stop(), hollow.stop()] == [0, 0]
    phases = {
        one.name: [c.phase for s in log_of(one).entries() for c in s.entry.contributions] for one in (site, hollow)
    }
    assert LAST_PHASE not in phases["a"] and LAST_PHASE in phases["h"]
    assert not events_of(site, "fork.resolved")
