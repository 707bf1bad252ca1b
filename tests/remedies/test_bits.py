"""One of three sites holds other bits of the model, as bad memory leaves them: what the alert says works."""

from pathlib import Path

import pytest

from dilocoxd.cli.exit_codes import FAILED
from dilocoxd.telemetry.alerts import kind_of
from tests.adversary.judge import assert_rounds_go_on, assert_same_bits
from tests.harness.running.openings import founder
from tests.harness.running.run_directories import join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import events_of, now, wait_event
from tests.harness.running.training import wait_joint_round
from tests.harness.synthetic.fake_site import TURN
from tests.remedies.test_findings import invoke

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
PATIENCE_S = 90
SAME = ("python", "torch", "config")
"""What must be equal at two sites for their bits to be."""


def told(site: SiteProcess) -> list[str]:
    """What the doctor says of the builds at a site."""
    lines = invoke("doctor", str(site.run_dir)).output.splitlines()
    return [line for line in lines if line.split()[:1] and line.split()[0] in SAME]


@pytest.mark.remedy("alert:digest_mismatch")
def test_the_site_in_the_minority_rebuilds_itself_and_doctors_are_compared(tmp_path: Path) -> None:
    remedy = kind_of("digest_mismatch").remedy
    for words in ("The site in the minority rebuilds itself", "compare `dilocoxd doctor` of both sites"):
        assert words in remedy, "the remedy no longer says so: follow what it says"
    with founder(tmp_path, PATIENCE_S, phase_s=1.0) as a:
        b, odd = join_run(tmp_path, "b", a), join_run(tmp_path, "odd", a)
        with sites(b, odd):
            b.start_without_model(1.0)
            odd.start_without_model(1.0)
            wait_joint_round([a, b, odd], PATIENCE_S)
            turn_until_told(odd, a)
            assert_same_bits(a, b, odd)
            assert_rounds_go_on(a, 3)
            wait_joint_round([a, b, odd], PATIENCE_S)
            assert told(a) == told(odd) != []
            flip_and_follow(odd)
            assert_same_bits(a, b, odd)
            assert [site.stop() for site in (odd, b, a)] == [0, 0, 0]


def flip_and_follow(site: SiteProcess) -> None:
    """A bit of an entry in the middle of its log, as a disk flips it: the daemon does not start, and both ways that it
    names lead out. It does not cut the log by itself: what is behind the bit may be all that is left of the run."""
    assert site.stop() == 0
    victim = sorted((site.run_dir / "log").iterdir())[1]
    whole = victim.read_bytes()
    for way in ("restore that file from a backup", f"move {site.run_dir / 'log'} away and start again"):
        victim.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
        already = len(site.log_path.read_text())
        site.start_without_model(1.0)
        assert site.process is not None and site.process.wait(PATIENCE_S) == FAILED
        said = site.log_path.read_text()[already:]
        assert "the log is damaged at entry 1 of " in said and way in said and "Traceback" not in said, said
        if way.startswith("restore"):
            victim.write_bytes(whole)
            site.start_without_model(1.0)
            site.says("peer_id")
            assert site.stop() == 0
    height = len(list((site.run_dir / "log").iterdir()))
    (site.run_dir / "log").rename(site.run_dir / "log.damaged")
    site.start_without_model(1.0)
    site.wait_height(height, PATIENCE_S)


def turn_until_told(odd: SiteProcess, other: SiteProcess) -> None:
    """A bit of `odd` turns over, and the other site raises the alert. Whoever is a round late just then, as on a busy
    machine, learns of it by entries of the others, who never hear of its bits: then another one turns over."""
    since = now()

    def is_told() -> bool:
        turned = now()
        (odd.run_dir / TURN).touch()
        wait_event(odd, "state.rebuilt", turned, PATIENCE_S)
        assert not (odd.run_dir / TURN).exists()
        assert_rounds_go_on(odd, 2)  # what it had said of its bits has been heard by then
        return raised(other, since)

    wait_until(is_told, "the alert", PATIENCE_S, other.describe)


def raised(site: SiteProcess, since: float) -> bool:
    return any(one["code"] == "digest_mismatch" for one in events_of(site, "alert.raised", since=since))
