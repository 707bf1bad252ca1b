"""Ids that were made to sort first, as many as a group has seats and always ready: they keep nobody out (R6.10, H3).

Two seats and two such ids stand for 64 of each, which tests/unit/machines/round/test_decisions.py has.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dilocoxd.swarm.discovery.identity import create
from tests.adversary.daemon import patched
from tests.harness.running.run_directories import OPEN, found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

PATIENCE_S = 300.0
PHASE_S = 0.5
SEATS = 2
IN_A_ROW = 8
"""Entries; one of three sites has no seat in so many by lot once in 3^8."""


def made_to_sort(folder: Path, number: int) -> list[Path]:
    """Keys, by their ids."""
    folder.mkdir()
    keys = [create(folder / f"{place}.key") for place in range(number)]
    return [key.path for key in sorted(keys, key=lambda key: key.peer_id)]


@contextlib.contextmanager
def surrounded(folder: Path, *patches: str) -> Iterator[SiteProcess]:
    """An honest site among as many others as there are seats, whose ids all come before its own."""
    folder.mkdir()
    *ground, last = made_to_sort(folder / "keys", SEATS + 1)
    site = found_run(folder, "a", *OPEN, "--set", f"round.peers_max={SEATS}")
    last.replace(site.run_dir / "identity.key")
    with sites(site):
        start(site, *patches)
        site.wait_height(1, PATIENCE_S)
        others = [join_run(folder, f"z{place}", site) for place in range(SEATS)]
        for other, key in zip(others, ground, strict=True):
            key.replace(other.run_dir / "identity.key")
        with sites(*others):
            for other in others:
                start(other, *patches)
            ids = {str(other.state()["peer_id"]) for other in others}
            assert max(ids) < site.state()["peer_id"]
            wait_until(lambda: ids <= named(site), "all of them in entries", PATIENCE_S, site.describe)
            yield site


def start(site: SiteProcess, *patches: str) -> None:
    if patches:
        patched(site, *patches, phase_s=PHASE_S)
    else:
        site.start_without_model(PHASE_S)


def named(site: SiteProcess, rounds: int = 1000) -> set[str]:
    """Who is in its newest entries."""
    return {one["peer"] for row in site.rounds()[-rounds:] for one in row["contributors"]}


def test_ids_that_sort_first_and_are_always_ready_keep_nobody_out(tmp_path: Path) -> None:
    with surrounded(tmp_path / "a") as site, surrounded(tmp_path / "h", "hole_seats") as hollow:
        for victim in (site, hollow):
            victim.wait_height(victim.state()["height"] + IN_A_ROW, PATIENCE_S)
        me = hollow.state()["peer_id"]
        wait_until(lambda: me not in named(hollow, IN_A_ROW), "it to be kept out", PATIENCE_S, hollow.describe)
        me, start = site.state()["peer_id"], site.state()["height"]
        for more in (1, 2, 3):
            site.wait_height(start + more * IN_A_ROW, PATIENCE_S)
            wait_until(lambda: me in named(site, IN_A_ROW), "an entry with it", PATIENCE_S, site.describe)
