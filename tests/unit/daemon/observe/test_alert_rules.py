"""Each watched alert is raised by its condition, stays while it holds, and goes; every code is in the table."""

import ast
import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.answers.nodes import NodeAside, NodePart, Nodes
from dilocoxd.answers.peers import Peer
from dilocoxd.answers.progress import StageSpeeds
from dilocoxd.answers.rounds import Contributor, RoundRow, RoundTimes
from dilocoxd.answers.status import WorkerProcess
from dilocoxd.daemon.observe.alert_rules import EXPIRE_S, AlertWatch, Seen
from dilocoxd.telemetry.alerts import BY_CODE, CLEARED_BY, KINDS, kind_of
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import FakeView

ROOT = Path(__file__).resolve().parents[4]
GB = 10**9


class World:
    """A status that tests change, looked at every five seconds."""

    def __init__(self) -> None:
        self.watch = AlertWatch()
        self.now = 1000.0
        self.peers: list[Peer] = []
        self.rounds: list[RoundRow] = []
        self.disk = (500 * GB, 1000 * GB, 0)
        self.dropped = 0
        self.texts: dict[str, str] = {}
        self.status = changed(
            FakeView(10).status(), state="training", waiting_for="", round__waiting_for="site B",
            totals__idle_s=0.0, totals__train_s=0.0, bad_input={}, alerts=(),
        )  # fmt: skip

    def change(self, **fields: Any) -> None:
        self.status = changed(self.status, **fields)

    def look(self) -> set[str]:
        self.now += 5.0
        free, total, snapshot = self.disk
        seen = Seen(self.status, self.peers, free, total, snapshot, self.dropped, self.rounds)
        self.texts = found = self.watch.look(seen, self.now)
        assert set(found) <= set(BY_CODE)
        return {code for code, text in found.items() if text}

    def wait(self, seconds: float) -> set[str]:
        found: set[str] = set()
        for _ in range(int(seconds // 5)):
            found = self.look()
        return found

    def commit(self, *, is_own: bool) -> None:
        contributions = self.status.totals.contributions + is_own
        self.change(height=self.status.height + 1, totals__contributions=contributions)

    def work(self, seconds: float, idle_share: float) -> set[str]:
        found: set[str] = set()
        for _ in range(int(seconds // 5)):
            totals = self.status.totals
            self.change(totals__idle_s=totals.idle_s + 5 * idle_share)
            self.change(totals__train_s=totals.train_s + 5 * (1 - idle_share))
            found = self.look()
        return found


def test_healthy_site_has_no_alerts() -> None:
    world = World()
    for _ in range(50):
        assert world.work(30, 0.01) == set()
        world.commit(is_own=True)


def test_alone_after_a_while_and_only_if_somebody_was_known() -> None:
    world = World()
    world.change(peers__live=0)
    assert world.wait(100) == set()
    assert world.wait(30) == {"alone"}
    world.change(peers__live=1)
    assert world.look() == set()
    world.change(peers__known=0, peers__live=0, state="joining")
    assert world.wait(500) == set()


def test_stall_is_measured_against_usual_rounds() -> None:
    world = World()
    world.look()
    for _ in range(5):
        world.wait(300)
        world.commit(is_own=True)
    assert world.wait(1400) == set()
    assert world.wait(200) == {"round_stalled"}
    world.commit(is_own=True)
    assert world.look() == set()
    world.change(state="paused")
    assert world.wait(5000) == set()


def test_stall_needs_ten_minutes_even_where_rounds_are_short() -> None:
    world = World()
    for _ in range(5):
        world.wait(10)
        world.commit(is_own=True)
    assert world.wait(590) == set()
    assert world.wait(30) == {"round_stalled"}


def test_behind_a_live_peer() -> None:
    world = World()
    live, dead = FakeView(14).peers()
    world.peers = [live, changed(dead, is_live=False, height=99)]
    assert world.wait(100) == set()
    assert world.wait(50) == {"behind"}
    world.peers[0] = changed(live, height=12)
    assert world.look() == set()


def test_idle_trainers_with_a_gap_between_raising_and_clearing() -> None:
    world = World()
    world.change(state="joining")  # rounds do not matter here
    assert world.work(100, 0.5) == set()
    assert world.work(60, 0.5) == {"trainer_idle"}
    assert world.work(600, 0.07) == {"trainer_idle"}
    assert world.work(700, 0.02) == set()
    assert world.work(700, 0.07) == set()


def test_uneven_stages_are_told_after_a_minute_with_the_line_that_helps() -> None:
    world = World()
    uneven = StageSpeeds(compute_s=(0.7, 0.1), faster_layers=(2, 6), faster_saves=0.28)
    world.change(progress__stages=uneven, phase__step_seconds=0.9)
    assert world.wait(60) == set()
    assert world.look() == {"stages_uneven"}
    assert world.texts["stages_uneven"] == (
        "of a step of 0.9 s the stages compute 0.7 s, 0.1 s; `layers_per_stage = [2, 6]` under [parallel] of site.toml"
        " would save 28% of it"
    )
    world.change(progress__stages=changed(uneven, faster_saves=0.06))
    assert world.look() == {"stages_uneven"}, "a gap between raising and clearing"
    world.change(progress__stages=changed(uneven, faster_layers=(), faster_saves=None))
    assert world.look() == set()
    world.change(progress__stages=changed(uneven, faster_saves=0.06))
    assert world.wait(300) == set()
    many = StageSpeeds(compute_s=(0.5,) * 9 + (0.1,), faster_layers=(2,) * 10, faster_saves=0.2)
    world.change(progress__stages=many)
    world.wait(65)
    assert "the stages compute between 0.1 s and 0.5 s;" in world.texts["stages_uneven"]


def idle_row(num_sites: int, times: RoundTimes) -> RoundRow:
    who = [Contributor(peer=f"p{n}", phase=1, tokens=1, inner_steps=1, base_round=0) for n in range(num_sites)]
    return RoundRow(round=1, contributors=tuple(who), is_contributor=True, committed_at=1.0, times=times)


def test_short_rounds_of_a_site_on_its_own_are_no_reason_for_an_alert() -> None:
    """It told a healthy first run of one site to use a faster link."""
    world = World()
    world.rounds = [idle_row(1, RoundTimes(form_s=0.2, apply_s=0.3, exchange_s=0.1))] * 9
    world.change(progress__round_s=4.0)
    assert "trainer_idle" not in world.work(200, 0.17)
    world.change(progress__round_s=300.0)
    assert "trainer_idle" in world.work(10, 0.17)
    assert "mostly for work here: 9 rounds took 5.4 s for work here" in world.texts["trainer_idle"]
    assert world.texts["trainer_idle"].endswith(", 0.0 s for the exchange")


def test_waiting_trainers_name_what_they_waited_for() -> None:
    world = World()
    world.rounds = [idle_row(2, RoundTimes(form_s=0.5, gather_s=1.0, exchange_s=2.0, vote_s=0.25))]
    assert "trainer_idle" in world.work(200, 0.5)
    said = "mostly for the exchange with other sites: 1 round took 0.5 s for work here"
    assert said in world.texts["trainer_idle"] and world.texts["trainer_idle"].endswith("3.2 s for the exchange")


def test_failing_attempts_bad_losses_and_p2pd() -> None:
    world = World()
    world.change(round__attempt=5)
    world.change(losses__inner=math.nan)
    world.change(workers={"p2pd": WorkerProcess(state="lost", restarts=0, pid=1)})
    assert world.look() == {"attempts_failing", "loss_not_finite", "worker_p2pd_lost"}
    world.change(round__attempt=4)
    world.change(losses__inner=None)
    world.change(workers={"p2pd": WorkerProcess(state="running", restarts=0, pid=1)})
    assert world.look() == set()


def test_a_loss_that_is_no_number_is_told_with_the_site_that_another_alert_names() -> None:
    world = World()
    world.change(losses__inner=math.nan)
    world.look()
    assert world.texts["loss_not_finite"] == "the newest inner loss is nan"
    named = StandingAlert(
        code="contrary_contribution", severity="warning", text="D: 100% left out of entry 7", remedy="ask", since=1.0
    )
    other = changed(named, code="alone", text="nobody is there")
    world.change(alerts=(other, named))
    world.look()
    told = world.texts["loss_not_finite"]
    assert told == "the newest inner loss is nan; the likely cause is a contribution (D: 100% left out of entry 7)"


def test_one_cause_is_told_once() -> None:
    world = World()
    spoiled = StandingAlert(code="state_spoiled", severity="critical", text="entry 7", remedy="go back", since=1.0)
    world.change(losses__inner=math.nan, alerts=(spoiled,))
    assert world.look() == set(), "who reads of the learning rate besides looks there first"


def test_bad_input_counts_what_is_new() -> None:
    world = World()
    world.change(state="joining")  # rounds do not matter here
    world.change(bad_input={"B": {"malformed": 20}})
    assert world.wait(700) == set()
    world.change(bad_input={"B": {"malformed": 30, "bad_hash": 15}})
    assert world.look() == {"bad_input"}
    assert world.texts["bad_input"] == "25 bad inputs of B within 600 s, most often bad_hash", (
        "its remedy depends on it"
    )
    assert world.wait(700) == set()
    world.change(bad_input={**world.status.bad_input, "C": {"malformed": 21}})
    assert world.look() == {"bad_input"}


def test_knocks_of_those_who_are_kept_out_raise_nothing() -> None:
    world = World()
    world.change(bad_input={"B": {"malformed": 0}})
    world.look()
    world.change(bad_input={"B": {"malformed": 20, "not_allowed": 500, "evicted": 500}})
    assert world.look() == set()
    world.change(bad_input={"B": {"malformed": 21, "not_allowed": 500, "evicted": 500}})
    assert world.look() == {"bad_input"}
    assert world.texts["bad_input"].endswith("most often malformed")


@pytest.mark.parametrize(
    ("disk", "is_low"),
    [
        ((100 * GB, 1000 * GB, 0), False),
        ((40 * GB, 1000 * GB, 0), True),
        ((1 * GB, 10 * GB, 0), True),
        ((10 * GB, 100 * GB, 6 * GB), True),
        ((13 * GB, 100 * GB, 6 * GB), False),
    ],
)
def test_low_disk(disk: tuple[int, int, int], is_low: bool) -> None:
    world = World()
    world.disk = disk
    assert ("disk_low" in world.look()) == is_low


def test_low_disk_is_told_in_a_unit_that_shows_something() -> None:
    world = World()
    world.disk = (10 * 10**6, 64 * 10**6, 0)
    world.look()
    assert world.texts["disk_low"] == "10.0 MB of 64.0 MB are free on the disk of the run directory"


def test_blocked_loop_and_dropped_values_are_shown_for_a_while() -> None:
    world = World()
    world.look()
    world.watch.note_blocked(0.5, world.now)
    assert world.look() == set()
    world.watch.note_blocked(3.0, world.now)
    world.dropped = 7
    assert world.look() == {"loop_blocked", "sink_dropping"}
    assert world.wait(400) == set()


def test_alerts_of_parts_expire_unless_raised_again() -> None:
    watch = AlertWatch()
    watch.note_raised("identity_twice", 0.0)
    assert watch.expired(599.0) == []
    watch.note_raised("identity_twice", 599.0)
    assert watch.expired(1100.0) == []
    assert watch.expired(1300.0) == ["identity_twice"]
    assert watch.expired(1301.0) == []


def test_every_code_that_the_program_names_is_in_the_table() -> None:
    """Literal codes in raised(...) and alert(...) calls, and names of watched parts in app.py."""
    found = {*EXPIRE_S, *(code for codes in CLEARED_BY.values() for code in codes)}
    literals = set()
    for path in (ROOT / "dilocoxd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and path.name != "alerts.py":
                literals.add(node.value)
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            codes = node.args[:1] if name == "raised" or name.endswith(".alert") else []
            found |= {str(c.value) for c in codes if isinstance(c, ast.Constant)}
            if name == "self._watched":
                found.add(f"{ast.literal_eval(node.args[2])}_failed")
    assert len(found) > 10
    for code in found:
        assert kind_of(code).summary
    workers = {f"worker_{role}_lost" for role in ("fork_server", "outer", "trainer", "p2pd")}
    assert workers <= set(BY_CODE)
    by_prometheus = {kind.code for kind in KINDS if kind.expr}
    never = set(BY_CODE) - found - workers - literals - by_prometheus
    assert not never, f"nothing raises {sorted(never)}"


def test_remedies_of_alerts_are_those_of_the_table_alone() -> None:
    """A second wording would be one that no test follows."""
    makers = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "dilocoxd").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("AlertRaised")
    ]
    assert makers == ["dilocoxd/telemetry/alerts.py"]


def test_table_is_whole() -> None:
    assert len(BY_CODE) == len(KINDS)
    for kind in KINDS:
        assert all((kind.summary, kind.condition, kind.cause, kind.remedy)), kind.code
        assert kind.summary.endswith(".") and kind.remedy.rstrip(")").endswith((".", "`"))


def nodes(*parts: tuple[int, str, Any, float], refused_from: str = "") -> Nodes:
    found = tuple(NodePart(part=p, node=node, state=state, since=since) for p, node, state, since in parts)
    return Nodes(parts=found, stages=(), free_places=0, refused=int(bool(refused_from)), refused_from=refused_from)


@pytest.mark.parametrize("state", ["starting", "joining", "catching_up", "preparing", "training", "paused"])
def test_missing_node_is_told_in_every_state_with_its_name_and_what_to_do(state: str) -> None:
    world = World()
    here, gone = (1, "gpu-2 (10.0.0.12)", "running", 10.0), (2, "gpu-3 (10.0.0.13)", "waiting", 0.0)
    world.change(state=state, nodes=nodes(here, gone))
    assert world.look() == set(), "a node whose connection broke comes back by itself"
    assert world.wait(10) == {"node_missing"}
    text = world.texts["node_missing"]
    assert "the node gpu-3 (10.0.0.13) with outer part 2, gone since 1970-01-01T" in text and "gpu-2" not in text
    assert text.endswith("start `dilocoxd node` there")
    world.change(nodes=nodes(here, (2, "gpu-3 (10.0.0.13)", "running", 20.0)))
    assert world.look() == set()


def test_part_that_no_node_ever_ran_is_told_with_those_who_were_refused() -> None:
    world = World()
    world.change(state="starting", nodes=nodes((1, "", "starting", 0.0)))
    assert world.wait(60) == set(), "a node is there, the part is on its way"
    world.change(nodes=nodes((1, "", "waiting", 0.0), (2, "", "waiting", 0.0), refused_from="10.0.0.9"))
    assert world.wait(10) == {"node_missing"}
    text = world.texts["node_missing"]
    assert "it waits for a machine for outer part 1, 2 since" in text
    assert "a connection from 10.0.0.9 was refused" in text


def test_node_that_is_left_alone_is_told_also_where_a_spare_has_its_place() -> None:
    world, why = World(), "its disk is full: No space left on device at /n; free space there"
    row = NodeAside(node="gpu-3 (10.0.0.13)", why=why, until=5.0)
    world.change(nodes=dataclasses.replace(nodes((1, "gpu-2 (10.0.0.12)", "running", 10.0)), aside=(row,)))
    assert world.look() == {"node_left_alone"}
    assert world.texts["node_left_alone"] == f"the node {row.node} is left alone for a while: {why}"
    world.change(nodes=dataclasses.replace(nodes((1, row.node, "waiting", 10.0)), aside=(row,)))
    assert world.wait(10) == {"node_left_alone", "node_missing"}
    text = world.texts["node_missing"]
    assert "the node gpu-3 (10.0.0.13) with outer part 1, left alone since 1970-01-01T" in text and text.endswith(why)
    assert text.count(why) == 1
    world.change(nodes=nodes((1, row.node, "running", 20.0)))
    assert world.look() == set()
