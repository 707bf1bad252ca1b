"""A real systemd starts, watches, stops and starts again a real daemon. One machine; the tests follow each other."""

import json
import re
import time

import pytest

from tests.containers.engine import docker, say
from tests.containers.node import Node
from tests.harness.running.sites import wait_until
from tests.systemd.conftest import RUN_DIR, SETTINGS, Machine

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(3600)]

PATIENCE_S = 400.0
EXPOSURE_MAX = 3.0
STOP_MAX_S = 30.0
WATCHDOG_S = 15
UNIT = "dilocoxd.service"
SECOND = "dilocoxd@second.service"
SECOND_DIR = "/var/lib/dilocoxd/second"
SECOND_API = 8081
HOOK = "/run/dilocoxd/block"

WATCH_START = f"""
import json, subprocess, time, urllib.request
subprocess.run(["systemctl", "start", "--no-block", "{UNIT}"], check=True)
counts = dict(before=0, after=0)
for _ in range(20000):
    state = subprocess.run(["systemctl", "is-active", "{UNIT}"], capture_output=True, text=True).stdout.strip()
    try:
        is_there = urllib.request.urlopen("http://127.0.0.1:8080/healthz", timeout=60).status == 200
    except OSError:
        is_there = False
    if state == "active":
        assert is_there, "ready, but the API does not answer"
        counts["after"] += 1
        break
    assert state in ("inactive", "activating"), state
    counts["before"] += state == "activating"
fields = ("ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
shown = subprocess.run(
    ["systemctl", "show", "{UNIT}", "-p", ",".join(fields)], capture_output=True, text=True, check=True
)
at = dict(line.split("=") for line in shown.stdout.split())
counts["starting_s"] = (int(at[fields[1]]) - int(at[fields[0]])) / 1e6
print(json.dumps(counts))
"""
STARTING_MIN_S = 0.5
"""A unit that is active as soon as its program runs is so within milliseconds; the program needs longer than this."""


def exposure(machine: Machine, unit: str) -> float:
    found = re.search(r"exposure level for .*: ([0-9.]+)", machine.sh(f"systemd-analyze security --no-pager {unit}"))
    assert found is not None
    return float(found[1])


def test_units_are_valid_and_little_exposed_with_and_without_gpus(machine: Machine) -> None:
    units = "dilocoxd.service dilocoxd@any.service dilocoxd-node.service"
    assert machine.sh(f"cd /etc/systemd/system && systemd-analyze verify --man=no {units} 2>&1") == ""
    figures = {"plain": exposure(machine, UNIT), "template": exposure(machine, SECOND)}
    figures["node"] = exposure(machine, "dilocoxd-node.service")
    drop_in = "/etc/systemd/system/dilocoxd@gpu.service.d/gpu.conf"
    machine.sh(
        f"install -D -m 0644 /srv/dilocoxd/dilocoxd/shipped/systemd/gpu.conf {drop_in} && systemctl daemon-reload"
    )
    assert machine.sh("cd /etc/systemd/system && systemd-analyze verify --man=no dilocoxd@gpu.service 2>&1") == ""
    figures["with GPUs"] = exposure(machine, "dilocoxd@gpu.service")
    say(f"exposure: {figures}")
    assert max(figures.values()) <= EXPOSURE_MAX


def test_start_is_ready_when_the_api_answers_and_says_what_it_does(machine: Machine) -> None:
    started = time.monotonic()
    counts = json.loads(machine.exec("python3", "-c", WATCH_START, timeout_s=300))
    ready_s = time.monotonic() - started
    assert counts["starting_s"] > STARTING_MIN_S, "it was ready before it can have been"
    machine.wait_height(2, PATIENCE_S)
    pattern = re.compile(r"training, outer step \d+, loss \d+\.\d+, 0 other sites live")
    text = wait_until(lambda: pattern.match(machine.show(UNIT, "StatusText")), "status text", 60, machine.describe)
    user = machine.sh("stat -c %U /proc/$(systemctl show --value -p MainPID dilocoxd)").strip()
    assert user == "dilocoxd"
    fields = machine.sh("journalctl -u dilocoxd -o json -n 1 DILOCOXD_EVENT=round.committed DILOCOXD_ROUND=0")
    assert json.loads(fields)["DILOCOXD_ENTRY_HASH"], "one journal field per value of an event"
    say(f"ready after {ready_s:.1f} s, seen starting {counts['before']} times; status text: {text[0]}")


def test_stop_is_graceful_and_leaves_no_process(machine: Machine) -> None:
    started = time.monotonic()
    machine.exec("systemctl", "stop", UNIT)
    stop_s = time.monotonic() - started
    assert machine.show(UNIT, "Result") == "success"
    assert machine.show(UNIT, "ExecMainStatus") == "0"
    last = machine.sh(f"grep daemon.stopped {RUN_DIR}/logs/events.jsonl | tail -1")
    assert json.loads(last)["reason"] == "SIGTERM"
    assert json.loads(last)["exit_code"] == 0
    assert machine.sh("find /proc -maxdepth 1 -ignore_readdir_race -name '[0-9]*' -user dilocoxd") == ""
    say(f"stopped in {stop_s:.1f} s")
    assert stop_s < STOP_MAX_S


@pytest.mark.parametrize("part", ["loop", "supervisor"])
def test_watchdog_ends_a_daemon_without_progress_and_starts_it_again(machine: Machine, part: str) -> None:
    machine.sh(
        "mkdir -p /etc/systemd/system/dilocoxd.service.d && printf '[Service]\\nWatchdogSec=%d\\n"
        f"Environment=DILOCOXD_TEST_BLOCK=%s\\n' {WATCHDOG_S} {HOOK} > /etc/systemd/system/dilocoxd.service.d/test.conf"
        " && systemctl daemon-reload && systemctl start dilocoxd"
    )
    height = machine.wait_height(2, PATIENCE_S)["height"]
    restarts, pid = int(machine.show(UNIT, "NRestarts")), machine.show(UNIT, "MainPID")
    started = time.monotonic()
    machine.sh(f"echo {part} > {HOOK}")
    wait_until(lambda: int(machine.show(UNIT, "NRestarts")) > restarts, "a restart", 120, machine.describe)
    killed_s = time.monotonic() - started
    status = machine.wait_height(height, PATIENCE_S)
    journal = machine.journal(UNIT)
    assert f"Watchdog timeout (limit {WATCHDOG_S}s)" in journal
    assert "Fatal Python error: Aborted" in journal, "the stack of what hung is in the journal"
    assert machine.show(UNIT, "MainPID") != pid
    say(f"{part}: ended and started again {killed_s:.1f} s after it stood still; height {height} -> {status['height']}")


def test_configuration_error_is_told_once_and_not_tried_again(machine: Machine) -> None:
    machine.sh("systemctl stop dilocoxd && rm -r /etc/systemd/system/dilocoxd.service.d && systemctl daemon-reload")
    restarts = machine.show(UNIT, "NRestarts")
    machine.sh(f"cp -p {RUN_DIR}/site.toml /srv/site.toml && echo 'colour = \"red\"' >> {RUN_DIR}/site.toml")
    machine.sh("systemctl start dilocoxd || true")
    wait_until(lambda: machine.show(UNIT, "ActiveState") == "failed", "the unit has failed", 60, machine.describe)
    assert machine.show(UNIT, "ExecMainStatus") == "78"
    assert machine.show(UNIT, "SubState") == "failed", "not waiting for a restart"
    assert machine.show(UNIT, "NRestarts") in (restarts, "0")
    assert re.search(r"unknown field \w+\.colour", machine.journal(UNIT))
    machine.sh(f"cp -p /srv/site.toml {RUN_DIR}/site.toml && systemctl reset-failed dilocoxd")


def test_second_run_directory_trains_along_under_the_template_with_its_key_as_credential(machine: Machine) -> None:
    machine.exec("systemctl", "start", UNIT)
    machine.wait_height(2, PATIENCE_S)
    link = machine.sh(f"dilocoxd-admin invite {RUN_DIR}").split()[-1]
    port = link.split("/")[4]
    link = "/ip4/127.0.0.1/tcp/" + port + link[link.index("/p2p/") :]
    machine.sh(f"dilocoxd-admin join {link} --no-run --dir {SECOND_DIR} --port 31338 --api-port {SECOND_API}")
    key = f"{SECOND_DIR}/identity.key"
    machine.sh(f"install -D -m 0400 {key} /etc/credstore/dilocoxd.second.identity && mv {key} /srv/")
    machine.exec("systemctl", "start", SECOND)
    machine.wait_height(1, PATIENCE_S, SECOND_API)
    wait_joint(machine)
    assert "identity.key" not in machine.sh(f"ls {SECOND_DIR}").split(), "the key came from the credential alone"
    first, second = machine.status()["peer_id"], machine.status(SECOND_API)["peer_id"]
    assert first != second
    say(f"the second site is {second} by its credential")


def wait_joint(node: Node) -> None:
    """Until one entry names both sites, and both show the same bits."""

    def is_joint() -> bool:
        rows = node.rounds()
        return any(len(row["contributors"]) == 2 for row in rows[-3:])

    wait_until(is_joint, "an entry of both", PATIENCE_S, lambda: node.describe() + node.describe(SECOND_API))
    seen: dict[int, set[tuple[str, ...]]] = {8080: set(), SECOND_API: set()}

    def is_equal() -> bool:
        for port, found in seen.items():
            status = node.status(port)
            if status:
                found.add((str(status["height"]), status["chain_head"], status["anchor_sha256"]))
        return bool(set.intersection(*seen.values()))

    wait_until(is_equal, "equal anchors", PATIENCE_S, lambda: node.describe() + node.describe(SECOND_API))


def test_reboot_goes_on_from_snapshot_and_log(machine: Machine) -> None:
    every = int(SETTINGS["snapshot.every_rounds"])
    machine.exec("systemctl", "enable", UNIT, SECOND)
    before = machine.wait_height(every + 1, PATIENCE_S)["height"]
    snapshots = machine.sh(f"ls {RUN_DIR}/snapshots").split()
    assert snapshots
    started = time.monotonic()
    docker("restart", "--time", "60", machine.id)
    machine.wait_booted()
    machine.wait_height(before, PATIENCE_S)
    machine.wait_height(before, PATIENCE_S, SECOND_API)
    back_s = time.monotonic() - started
    wait_joint(machine)
    rounds = machine.get("/v1/rounds?from=0&limit=3") or []
    assert [row["round"] for row in rounds[:3]] == [0, 1, 2], "the log of before is there"
    say(f"rebooted: both train again at height {before} after {back_s:.1f} s; snapshots were {snapshots}")
    machine.exec("systemctl", "stop", UNIT, SECOND)
    assert "Traceback" not in machine.journal(UNIT) + machine.journal(SECOND)
