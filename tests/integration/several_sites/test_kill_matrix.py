"""Loss of any one part of a site by SIGKILL at any moment of a round: the site comes back, the others lose nothing.

One swarm of three lives through all of it. Site b loses its daemon, p2pd, fork server, outer worker or a trainer rank
(real ones, two stages) while it trains, exchanges, commits or applies; sites a and c have trainers without a model, so
that two cores are enough, and nothing of theirs is ever touched. `pytest -s` prints the figures of docs/benchmarks.md.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import pytest

from tests.chaos.judge import Left, Verdict, check_undisturbed, fates_of
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import SiteProcess, sites, wait_until
from tests.harness.running.strikes import Event, Fault, events_of, now, wait_event
from tests.harness.running.training import (
    PATIENCE_S,
    assert_logs_agree,
    assert_states_agree,
    founder_options,
    log_of,
    site_options,
    wait_joint_round,
    write_corpus,
)

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

MOMENTS = ("training", "exchange", "commit", "apply")
VICTIMS = ("outer", "trainer", "p2pd", "daemon")
TREE_GONE_S = 60.0


@dataclass
class Cell:
    """What one kill came to, in seconds after it."""

    victim: str
    moment: str
    noticed_s: float
    running_s: float
    in_round_s: float
    gap_s: float


@dataclass
class Swarm:
    """Three sites of one run; b is the one that suffers."""

    a: SiteProcess
    b: SiteProcess
    c: SiteProcess
    fault: Fault
    peer: str = ""
    cells: list[Cell] = field(default_factory=list)

    @property
    def members(self) -> tuple[SiteProcess, SiteProcess, SiteProcess]:
        return self.a, self.b, self.c

    def height(self) -> int:
        """Height of b."""
        return int(wait_until(lambda: self.b.status().get("height"), "a height", PATIENCE_S, self.b.describe))


def start_survivor(site: SiteProcess) -> None:
    """A site whose trainers have no model: same daemon, p2pd and outer worker."""
    site.environment["SYNTHETIC_STEP_S"] = "0.16"
    site.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(site.run_dir)])


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    """a founds the run, b joins by a, c by b; all three are in one round."""
    folder = tmp_path_factory.mktemp("matrix")
    write_corpus(folder)
    a = found_run(folder, "a", *founder_options(folder))
    with sites(a):
        start_survivor(a)
        a.wait_height(1, PATIENCE_S)
        b = join_run(folder, "b", a, *site_options(folder, stages=2))
        fault = Fault(b)
        with sites(b):
            b.start()
            b.wait_height(2, PATIENCE_S)
            c = join_run(folder, "c", b, *site_options(folder))
            with sites(c):
                start_survivor(c)
                wait_joint_round([a, b, c])
                yield Swarm(a, b, c, fault, b.says("peer_id"))


def victim_process(site: SiteProcess, victim: str) -> psutil.Process:
    """The process to kill; of the trainers the last rank."""
    if victim == "daemon":
        return site.tree()[0]
    worker = site.says("workers")[victim]
    return psutil.Process(worker["pids"][-1] if victim == "trainer" else worker["pid"])


def wait_moment(swarm: Swarm, moment: str) -> None:
    """Until b is in the middle of it; for all but `training` b is held there."""
    if moment == "training":

        def is_training() -> bool:
            status = swarm.b.status()
            state = (status.get("round") or {}).get("state")
            return state in ("idle", "gathering") and (status.get("phase") or {}).get("inner_step", 0) > 1

        wait_until(is_training, "training", PATIENCE_S, swarm.b.describe)
    else:
        swarm.fault.arm(moment)
        swarm.fault.wait_held(moment, PATIENCE_S)


def strike(swarm: Swarm, victim: str) -> float:
    """SIGKILL, and the end of the hold; a daemon is started again as a service manager would. When it was."""
    process, tree = victim_process(swarm.b, victim), swarm.b.tree()
    at = now()
    process.kill()
    swarm.fault.release()
    if victim == "daemon":
        assert not psutil.wait_procs(tree, timeout=TREE_GONE_S)[1], "what a killed daemon leaves behind"
        assert swarm.b.process is not None
        swarm.b.process.wait(TREE_GONE_S)
        swarm.b.start()
    return at


def is_notice(event: Event, peer: str) -> bool:
    return event["event"] == "round.abandoned" or event.get("peer") == peer


def measure(swarm: Swarm, victim: str, moment: str, at: float, height: int) -> Cell:
    """Wait until b is whole and in a round again; how long each part took."""
    a, b = swarm.a, swarm.b
    if victim == "daemon":
        running = wait_event(b, "worker.started", at, PATIENCE_S, worker="trainer")
        notices = [e for e in events_of(a, "round.abandoned", "peer.lost", since=at) if is_notice(e, swarm.peer)]
    else:
        notices = [wait_event(b, "worker.died", at, PATIENCE_S, worker=victim)]
        running = wait_event(b, "worker.started", at, PATIENCE_S, worker=victim)

    def entry_of_b() -> Event | None:
        rounds = events_of(a, "round.committed", since=running["time"])
        return next((e for e in rounds if e["round"] > height and swarm.peer in e["contributors"]), None)

    entry: Event = wait_until(entry_of_b, f"an entry of b after {victim} in {moment}", PATIENCE_S, b.describe)
    before = events_of(a, "round.committed")
    times = [e["time"] for e in before if e["time"] <= entry["time"]]
    gap = max(end - start for start, end in itertools.pairwise(times) if end >= at)
    noticed = notices[0]["time"] - at if notices else float("nan")
    return Cell(victim, moment, noticed, running["time"] - at, entry["time"] - at, gap)


CELLS = [(victim, moment) for moment in MOMENTS for victim in VICTIMS] + [
    ("daemon", "persisted"),
    ("fork_server", "training"),
    ("fork_server", "apply"),
]
"""The fork server takes outer worker and trainers along: worst in the middle of an update."""


@pytest.mark.parametrize(("victim", "moment"), CELLS)
def test_site_comes_back_and_all_anchors_are_equal(swarm: Swarm, victim: str, moment: str) -> None:
    height = swarm.height()
    wait_moment(swarm, moment)
    at = strike(swarm, victim)
    swarm.cells.append(measure(swarm, victim, moment, at, height))
    print(swarm.cells[-1])
    assert_states_agree(*swarm.members)


def left_by(site: SiteProcess, peer: str) -> Left:
    """What a stopped site has on its disk."""
    entries = [signed.entry for signed in log_of(site).entries()]
    chain = [{"contributors": [{"peer": c.peer, "phase": c.phase} for c in entry.contributions]} for entry in entries]
    return Left(site.name, peer, events_of(site), chain)


def test_in_the_end_no_phase_of_the_others_is_lost(swarm: Swarm) -> None:
    peers = {site.name: site.says("peer_id") for site in swarm.members}
    assert [site.stop() for site in (swarm.c, swarm.a, swarm.b)] == [0, 0, 0]
    assert_logs_agree(*swarm.members)
    survivors = [left_by(site, peers[site.name]) for site in (swarm.a, swarm.c)]
    verdict = Verdict()
    check_undisturbed(verdict, survivors)
    assert not verdict.violations, verdict.violations
    for survivor in survivors:
        print(f"{survivor.name}: {Counter(fates_of(survivor.events).values())}")
    for site in (swarm.a, swarm.c):
        assert (site.run_dir / "site" / "feedback.safetensors").exists()
    print("| moment | victim | noticed s | running again s | in an entry again s | longest gap of the others s |")
    for cell in swarm.cells:
        figures = (cell.noticed_s, cell.running_s, cell.in_round_s, cell.gap_s)
        print(f"| {cell.moment} | {cell.victim} | {' | '.join(f'{value:.1f}' for value in figures)} |")
