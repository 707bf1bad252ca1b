"""A crowd that connects, sends garbage and half frames, and leaves: memory, API and rounds hardly notice (H5)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversary.crowd import hold_frames, throw_garbage
from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on, resident_mib
from tests.adversary.programs.asking import asked
from tests.harness.running.run_directories import OPEN, found_run
from tests.harness.running.sites import SiteProcess, sites

pytestmark = pytest.mark.processes

PATIENCE_S = 90.0
GARBAGE = 200
KEYS, FRAMES = 4, 50
"""200 half-sent frames: 195 MiB. One network may hold 32 MiB of them."""
GROWTH_MIB = 110.0
MEMORY_MIB = 450.0
ANSWER_S = 1.0
"""Of the API on a machine that all else uses as well; tests/bench/trust.py measures it on an idle one."""


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SiteProcess, SiteProcess]]:
    """A site, and one without the mend."""
    folder = tmp_path_factory.mktemp("crowds")
    site, hollow = found_run(folder, "a", *OPEN), found_run(folder, "h", *OPEN)
    site.cold = hollow.cold = True
    with sites(site, hollow):
        site.start_without_model(1.0)
        patched(hollow, "hole_room")
        for one in (site, hollow):
            one.wait_height(1, PATIENCE_S)
        yield site, hollow


def test_crowd_with_garbage_is_not_noticed(victims: tuple[SiteProcess, SiteProcess]) -> None:
    site, _ = victims
    before = resident_mib(site)
    with asked(site) as answers:
        asyncio.run(throw_garbage(site, GARBAGE))
        assert_rounds_go_on(site)
    assert resident_mib(site) - before < 20.0
    assert answers.median_s < ANSWER_S


def test_half_sent_frames_take_little_memory(tmp_path: Path, victims: tuple[SiteProcess, SiteProcess]) -> None:
    site, hollow = victims
    grown = {}
    for victim in (site, hollow):
        before = resident_mib(victim)
        with asked(victim) as answers:
            peak = asyncio.run(_peak(tmp_path / victim.name, victim))
        grown[victim.name] = peak - before
        if victim is site:
            assert peak < MEMORY_MIB
            assert answers.median_s < ANSWER_S
    assert_rounds_go_on(site)
    assert grown["a"] < GROWTH_MIB < grown["h"], grown


async def _peak(folder: Path, victim: SiteProcess) -> float:
    """The most memory, in MiB, that the daemon has while a crowd holds frames."""
    holding = asyncio.create_task(hold_frames(folder, victim, KEYS, FRAMES))
    peak = 0.0
    while not holding.done():
        peak = max(peak, resident_mib(victim))
        await asyncio.wait([holding], timeout=0.2)
    await holding
    return peak
