"""Remedies about other sites: two daemons without models, in one run, through one trouble after the other.

What an alert waits for is not waited for here: the daemon's own watch looks at what the daemons say by a clock that the
test sets.
"""

import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from dilocoxd.answers.peers import Peer
from dilocoxd.answers.status import Status
from dilocoxd.daemon.observe.alert_rules import AlertWatch, Seen
from dilocoxd.store.rundir import open_run_dir
from tests.adversary.daemon import patched
from tests.harness.running.run_directories import found_run, free_port, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import now, wait_event
from tests.harness.synthetic.fake_site import HOLD
from tests.remedies.names import REMEDIES
from tests.remedies.test_findings import invoke, of_site, require_words, set_site

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
PATIENCE_S = 90
LONG_PHASE_S = 1000.0
PHASE_S = 1.0
# A site that coordinates waits for its own contribution as for those of others; not for long here.
LIMITS = ("round.progress_timeout_s=2.0", "round.grace_max_s=2.0")
SETTINGS = ("round.quorum=majority", "inner.batch_sequences_max=64", *LIMITS)
OPTIONS = [part for one in SETTINGS for part in ("--set", one)]
GB = 10**9


class Clocked:
    """The alerts of a running site, by its own watch and the clock of the test."""

    def __init__(self, site: SiteProcess) -> None:
        self._site = site
        self._watch = AlertWatch()
        self._now = 0.0
        self.look()

    def look(self, seconds: float = 5.0) -> dict[str, str]:
        """Texts of the alerts that stand so much later."""
        self._now += seconds
        status = TypeAdapter(Status).validate_python(self._site.get("/v1/status"))
        peers = TypeAdapter(list[Peer]).validate_python(self._site.get("/v1/peers"))
        found = self._watch.look(Seen(status, peers, 500 * GB, 1000 * GB, 0), self._now)
        return {code: text for code, text in found.items() if text}


def follow(name: str, *words: str) -> None:
    """The remedy says what this test does."""
    for word in words:
        assert word in REMEDIES[name], f"the remedy of {name} no longer speaks of {word}: follow what it says"


def wait_state(site: SiteProcess, state: str) -> None:
    wait_until(lambda: site.status().get("state") == state, f"{site.name} {state}", PATIENCE_S, site.describe)


def grow(site: SiteProcess, rounds: int) -> None:
    site.wait_height(site.status()["height"] + rounds, PATIENCE_S)


@pytest.mark.remedy("health:3", "alert:behind", "health:4", "alert:left_out", "finding:data")
@pytest.mark.remedy("finding:reach", "alert:alone", "alert:round_stalled", "alert:attempts_failing")
def test_troubles_with_others_end_as_told(tmp_path: Path) -> None:
    a = found_run(tmp_path, "a", *OPTIONS)
    set_site(a.run_dir, "network.data_connections=8", f"network.data_port={free_port()}")
    with sites(a):
        a.start_without_model(PHASE_S)
        a.wait_height(4, PATIENCE_S)
        b = join_run(tmp_path, "b", a)
        with sites(b):
            nobody_answers(b)
            slow_worker(b)
            slow_phases(a, b)
            wrong_address(a)
            gone(a, b)
            broken_link(a, b)
            assert [site.stop() for site in (b, a)] == [0, 0]


def nobody_answers(b: SiteProcess) -> None:
    """A new site that was given a dead address."""
    follow("health:3", "`dilocoxd doctor RUN_DIR`", "`join.stage_failed` name address, stage and reason")
    (good,) = open_run_dir(b.run_dir).load()[1].network.bootstrap
    bad, since = f"127.0.0.1:{free_port()}", now()
    set_site(b.run_dir, f'network.bootstrap=["{bad}"]')
    b.start_without_model(LONG_PHASE_S)
    wait_state(b, "joining")
    assert of_site(b.run_dir)["bootstrap"].level == "error"
    told = wait_event(b, "join.stage_failed", since, PATIENCE_S)
    assert bad.rpartition(":")[2] in str(told) and told["stage"] and told["reason"]
    assert b.stop() == 0
    set_site(b.run_dir, f'network.bootstrap=["{good}"]')


def slow_worker(b: SiteProcess) -> None:
    """Entries are not applied: the site stays behind, says why, and loses nothing when it is killed meanwhile."""
    follow("alert:behind", "`dilocoxd status` says what recovery waits for", "the CPU of the outer worker")
    follow("health:4", "`dilocoxd status` shows what is being fetched", "nothing is lost when it is restarted")
    (b.run_dir / HOLD).touch()
    set_site(b.run_dir, "network.data_connections=0")
    b.start_without_model(LONG_PHASE_S)
    wait_state(b, "catching_up")
    watch = Clocked(b)
    wait_until(lambda: "behind" in watch.look(150.0), "behind", PATIENCE_S, b.describe)
    assert re.search(r"waits for +(?!nothing)\S", invoke("status", str(b.run_dir)).output)
    b.kill_tree()
    (b.run_dir / HOLD).unlink()
    b.start_without_model(LONG_PHASE_S)
    wait_state(b, "training")
    watch = Clocked(b)
    wait_until(lambda: "behind" not in watch.look(150.0), "no longer behind", PATIENCE_S, b.describe)


def slow_phases(a: SiteProcess, b: SiteProcess) -> None:
    """It takes so long for a phase that the others never wait; and nobody reaches a data port of it."""
    follow("alert:left_out", "`dilocoxd peers`", "a smaller parallel.batch_sequences where the run allows one")
    follow("finding:data", "set network.data_port", "open that port")
    watch = Clocked(b)
    wait_until(lambda: "left_out" in watch.look(), "left out", PATIENCE_S, b.describe)
    shown = invoke("peers", str(b.run_dir)).output
    assert "step" in shown and "link" in shown
    wait_until(lambda: of_site(a.run_dir)["data"].level == "warning", "the finding", PATIENCE_S, a.describe)
    assert b.stop() == 0
    set_site(b.run_dir, "parallel.batch_sequences=1", "network.data_connections=8", f"network.data_port={free_port()}")
    assert invoke("check-config", str(b.run_dir)).return_value == 0
    b.start_without_model(PHASE_S)  # a step of fewer sequences is shorter
    wait_until(lambda: b.status().get("totals", {}).get("contributions"), "a contribution", PATIENCE_S, b.describe)
    watch = Clocked(b)
    grow(b, 6)
    wait_until(lambda: "left_out" not in watch.look(), "no longer left out", PATIENCE_S, b.describe)
    wait_until(lambda: of_site(a.run_dir)["data"].level == "ok", "data connections", PATIENCE_S, a.describe)


def wrong_address(a: SiteProcess) -> None:
    """It announces an address at which nobody listens."""
    require_words("reach", "set network.announce")
    right = f"127.0.0.1:{open_run_dir(a.run_dir).load()[1].network.port}"
    for address, level in ((f"127.0.0.1:{free_port()}", "error"), (right, "ok")):
        assert a.stop() == 0
        set_site(a.run_dir, f'network.announce=["{address}"]')
        a.start_without_model(PHASE_S)
        wait_until(
            lambda wanted=level: of_site(a.run_dir)["reach"].level == wanted, f"reach {level}", PATIENCE_S, a.describe
        )
    wait_until(lambda: a.status()["peers"]["took_part_last_round"] == 2, "a joint round", PATIENCE_S, a.describe)


def gone(a: SiteProcess, b: SiteProcess) -> None:
    """The other site dies, and without it there is no majority."""
    follow("alert:alone", "`dilocoxd doctor`", "ask the others for `dilocoxd status`")
    follow("alert:round_stalled", "`dilocoxd status` says what is waited for")
    watch = Clocked(a)
    b.kill_tree()
    wait_until(lambda: "alone" in watch.look(130.0), "alone", PATIENCE_S, a.describe)
    wait_until(lambda: "round_stalled" in watch.look(700.0), "stalled", PATIENCE_S, a.describe)
    # Between two attempts it waits for something else for a moment.
    says = lambda: " ".join(invoke("status", str(a.run_dir)).output.split())  # noqa: E731
    wait_until(lambda: "more than half" in says(), "what is waited for", PATIENCE_S, a.describe)
    with pytest.raises(Exception, match="daemon"):
        invoke("status", str(b.run_dir))
    b.start_without_model(PHASE_S)
    grow(a, 2)
    over = {"alone", "round_stalled"}  # one look may find the other silent again: limits of this run are two seconds
    wait_until(lambda: not over & watch.look().keys(), "the end of both", PATIENCE_S, a.describe)


def broken_link(a: SiteProcess, b: SiteProcess) -> None:
    """Nothing that the other site sends arrives, and without it there is no majority."""
    follow("alert:attempts_failing", "`dilocoxd rounds` names the reasons and the peers", "stop or repair that site")
    assert b.stop() == 0
    patched(b, "lose_uploads", phase_s=PHASE_S)
    watch = Clocked(a)
    wait_until(lambda: "attempts_failing" in watch.look(), "failing attempts", PATIENCE_S, a.describe)
    told = " ".join(invoke("rounds", "--last", "1", str(a.run_dir)).output.split())
    assert b.status()["peer_id"][-6:] in told, told
    assert b.stop() == 0
    b.start_without_model(PHASE_S)
    grow(a, 2)
    wait_until(lambda: "attempts_failing" not in watch.look(), "the end of it", PATIENCE_S, a.describe)
