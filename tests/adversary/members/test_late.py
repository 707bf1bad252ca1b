"""A member that votes and hardly delivers: nothing at all, or each segment just in time (R12.3, R12.13, M10 of TRUST).

The first costs a time-out in one round of four, not in each; the second is left out once most others are done, where a
round would last for as many patiences as it owes segments.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.daemon import patched
from tests.adversary.judge import assert_rounds_go_on, assert_same_bits
from tests.adversary.patches.members.lie_just_in_time import VARIABLE
from tests.harness.running.run_directories import OPEN, found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(1200)]

PATIENCE_S = 240.0
"""Against hangs alone: a machine that four other files of tests keep busy may need more than a minute for a liar that
joins, and is felt."""
PHASE_S = 0.3
PATIENT_S = 1.0
"""`round.progress_timeout_s` of these runs."""
PAUSE_S = 0.7
SEGMENTS = 120
"""Of which each of four owns thirty: who brings them just in time needs 21 s for the shares of a round alone."""
ENOUGH = 8
"""Rounds, or failed attempts."""
STILL_S = 15.0
"""Without a round: twice as long as whoever alone holds one up is waited for."""
TOLD = "most others are done since"
LATE = "no progress for"


@contextlib.contextmanager
def run_with(folder: Path, lie: str, *holes: str, segments: int = 0) -> Iterator[tuple[list[SiteProcess], SiteProcess]]:
    """Three sites, with these holes, that have made an entry together; a fourth has just begun to lie. `segments`: of
    the model, if it is to have many."""
    folder.mkdir()
    environment = {VARIABLE: str(PAUSE_S)} | ({"FAKE_SEGMENTS": str(segments)} if segments else {})

    def begin(site: SiteProcess, *patches: str) -> SiteProcess:
        site.environment |= environment
        if patches:
            patched(site, *patches, phase_s=PHASE_S)
        else:
            site.start_without_model(PHASE_S)
        return site

    founder = found_run(folder, "a", *OPEN, "--set", f"round.progress_timeout_s={PATIENT_S}")
    with contextlib.ExitStack() as running:
        running.enter_context(sites(founder))
        begin(founder, *holes)
        founder.wait_height(1, PATIENCE_S)
        honest = [founder]
        for name in ("b", "c"):
            site = join_run(folder, name, founder)
            running.enter_context(sites(site))
            honest.append(begin(site, *holes))
        wait_until(lambda: joint(founder, 3), "a round of three", PATIENCE_S, founder.describe)
        liar = join_run(folder, "liar", founder)
        running.enter_context(sites(liar))
        yield honest, begin(liar, f"members.{lie}")


def joint(site: SiteProcess, number: int) -> list[dict[str, Any]]:
    """Rounds of so many contributors."""
    return [row for row in site.rounds() if len(row["contributors"]) >= number]


def failures(site: SiteProcess) -> list[dict[str, Any]]:
    """Of attempts at rounds, whoever gave them up first, since somebody waited for the liar in vain."""
    found = events_of(site, "round.abandoned")
    first = next((at for at, event in enumerate(found) if LATE in str(event["reason"])), len(found))
    return found[first:]


def told_of(honest: list[SiteProcess], liar: SiteProcess) -> bool:
    """Whether somebody gave an attempt up because this one alone held it up."""
    name = liar.state()["peer_id"]
    reasons = [str(event["reason"]) for site in honest for event in events_of(site, "round.abandoned")]
    return any(TOLD in reason and name in reason for reason in reasons)


@pytest.mark.parametrize("holes", [(), ("hole_conflicts",)])
def test_who_votes_and_delivers_nothing_costs_few_rounds_a_time_out(tmp_path: Path, holes: tuple[str, ...]) -> None:
    with run_with(tmp_path / "run", "lie_late", *holes) as ((site, *others), _):
        wait_until(lambda: failures(site), "the lie to be felt", PATIENCE_S, site.describe)
        begun = site.state()["height"]

        def rounds() -> int:
            return int(site.state()["height"]) - begun

        wait_until(lambda: rounds() >= ENOUGH or len(failures(site)) > ENOUGH, "rounds", PATIENCE_S, site.describe)
        assert (len(failures(site)) > rounds()) == bool(holes), (len(failures(site)), rounds())
        if not holes:
            assert_same_bits(site, *others)


@pytest.mark.parametrize("holes", [(), ("hole_few_owe",)])
def test_who_brings_each_segment_just_in_time_is_left_out(tmp_path: Path, holes: tuple[str, ...]) -> None:
    with run_with(tmp_path / "run", "lie_just_in_time", *holes, segments=SEGMENTS) as (honest, liar):
        site = honest[0]

        def stands_still() -> bool:
            newest = max(float(row["committed_at"]) for row in site.rounds())
            return time.time() - newest > STILL_S

        def is_felt() -> bool:
            """A busy machine may itself make no round for so long: those without the hole must say why."""
            return told_of(honest, liar) or (bool(holes) and stands_still())

        wait_until(is_felt, "the lie to be felt", PATIENCE_S, site.describe)
        assert told_of(honest, liar) != bool(holes)
        if not holes:
            assert_rounds_go_on(site, 3)
            assert_same_bits(*honest)
