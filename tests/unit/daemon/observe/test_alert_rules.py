"""Each watched alert is raised by its condition, stays while it holds, and goes; every code is in the table."""

import ast
import math
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.daemon.alert_watch import EXPIRE_S, AlertWatch, Seen
from dilocoxd.telemetry.alerts import BY_CODE, CLEARED_BY, KINDS, kind_of

ROOT = Path(__file__).resolve().parents[3]
GB = 10**9


class World:
    """A status that tests change, looked at every five seconds."""

    def __init__(self) -> None:
        self.watch = AlertWatch()
        self.now = 1000.0
        self.peers: list[dict[str, Any]] = []
        self.disk = (500 * GB, 1000 * GB, 0)
        self.dropped = 0
        self.status: dict[str, Any] = {
            "state": "training", "waiting_for": "", "height": 10,
            "totals": {"contributions": 10, "idle_s": 0.0, "train_s": 0.0},
            "round": {"round": 10, "attempt": 0, "waiting_for": "site B"},
            "losses": {"inner": 3.0}, "peers": {"known": 2, "live": 2}, "bad_input": {},
            "workers": {"p2pd": {"state": "running"}},
        }  # fmt: skip

    def look(self) -> set[str]:
        self.now += 5.0
        free, total, snapshot = self.disk
        seen = Seen(self.status, self.peers, free, total, snapshot, self.dropped)
        found = self.watch.look(seen, self.now)
        assert set(found) <= set(BY_CODE)
        return {code for code, text in found.items() if text}

    def wait(self, seconds: float) -> set[str]:
        found: set[str] = set()
        for _ in range(int(seconds // 5)):
            found = self.look()
        return found

    def commit(self, *, is_own: bool) -> None:
        self.status["height"] += 1
        self.status["totals"]["contributions"] += is_own

    def work(self, seconds: float, idle_share: float) -> set[str]:
        found: set[str] = set()
        for _ in range(int(seconds // 5)):
            self.status["totals"]["idle_s"] += 5 * idle_share
            self.status["totals"]["train_s"] += 5 * (1 - idle_share)
            found = self.look()
        return found


def test_healthy_site_has_no_alerts() -> None:
    world = World()
    for _ in range(50):
        assert world.work(30, 0.01) == set()
        world.commit(is_own=True)


def test_alone_after_a_while_and_only_if_somebody_was_known() -> None:
    world = World()
    world.status["peers"]["live"] = 0
    assert world.wait(100) == set()
    assert world.wait(30) == {"alone"}
    world.status["peers"]["live"] = 1
    assert world.look() == set()
    world.status["peers"], world.status["state"] = {"known": 0, "live": 0}, "joining"
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
    world.status["state"] = "paused"
    assert world.wait(5000) == set()


def test_stall_needs_ten_minutes_even_where_rounds_are_short() -> None:
    world = World()
    for _ in range(5):
        world.wait(10)
        world.commit(is_own=True)
    assert world.wait(590) == set()
    assert world.wait(30) == {"round_stalled"}


def test_left_out_after_five_entries_without_us() -> None:
    world = World()
    world.look()
    for _ in range(4):
        world.commit(is_own=False)
        assert world.look() == set()
    world.commit(is_own=False)
    assert world.look() == {"left_out"}
    world.commit(is_own=True)
    assert world.look() == set()


def test_what_a_newcomer_caught_up_with_was_not_missed() -> None:
    world = World()
    world.status.update(state="catching_up", height=0)
    world.look()
    world.status.update(state="training", height=158)
    assert world.look() == set()
    for _ in range(4):
        world.commit(is_own=False)
        assert world.look() == set()
    world.commit(is_own=False)
    assert world.look() == {"left_out"}


def test_behind_a_live_peer() -> None:
    world = World()
    world.peers = [{"peer_id": "B", "is_live": True, "height": 14}, {"peer_id": "C", "is_live": False, "height": 99}]
    assert world.wait(100) == set()
    assert world.wait(50) == {"behind"}
    world.peers[0]["height"] = 12
    assert world.look() == set()


def test_idle_trainers_with_a_gap_between_raising_and_clearing() -> None:
    world = World()
    world.status["state"] = "joining"  # rounds do not matter here
    assert world.work(100, 0.5) == set()
    assert world.work(60, 0.5) == {"trainer_idle"}
    assert world.work(600, 0.07) == {"trainer_idle"}
    assert world.work(700, 0.02) == set()
    assert world.work(700, 0.07) == set()


def test_failing_attempts_bad_losses_and_p2pd() -> None:
    world = World()
    world.status["round"]["attempt"] = 5
    world.status["losses"]["inner"] = math.nan
    world.status["workers"]["p2pd"]["state"] = "lost"
    assert world.look() == {"attempts_failing", "loss_not_finite", "worker_p2pd_lost"}
    world.status["round"]["attempt"] = 4
    world.status["losses"]["inner"] = None
    world.status["workers"]["p2pd"]["state"] = "running"
    assert world.look() == set()


def test_bad_input_counts_what_is_new() -> None:
    world = World()
    world.status["state"] = "joining"  # rounds do not matter here
    world.status["bad_input"] = {"B": {"malformed": 20}}
    assert world.wait(700) == set()
    world.status["bad_input"] = {"B": {"malformed": 30, "bad_hash": 15}}
    assert world.look() == {"bad_input"}
    assert world.wait(700) == set()
    world.status["bad_input"] |= {"C": {"malformed": 21}}
    assert world.look() == {"bad_input"}


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
    """Literal codes in AlertRaised(code=...) and alert(...) calls, and names of watched parts in app.py."""
    found = {*EXPIRE_S, *(code for codes in CLEARED_BY.values() for code in codes)}
    for path in (ROOT / "dilocoxd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            codes = [k.value for k in node.keywords if k.arg == "code"] if name.endswith("AlertRaised") else []
            codes += node.args[:1] if name.endswith(".alert") else []
            found |= {str(c.value) for c in codes if isinstance(c, ast.Constant)}
            if name == "self._watched":
                found.add(f"{ast.literal_eval(node.args[2])}_failed")
    assert len(found) > 10
    for code in found:
        assert kind_of(code).summary
    assert {f"worker_{role}_lost" for role in ("outer", "trainer", "p2pd")} <= set(BY_CODE)


def test_table_is_whole() -> None:
    assert len(BY_CODE) == len(KINDS)
    for kind in KINDS:
        assert all((kind.summary, kind.condition, kind.cause, kind.remedy)), kind.code
        assert kind.summary.endswith(".") and kind.remedy.rstrip(")").endswith((".", "`"))
