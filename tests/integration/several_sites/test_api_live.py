"""The API of real daemons: its contract under generated requests, control with real effects, a peer that dials back.

Models and workers are left out (tests/harness/fake_site); network, rounds, log and API are real.
"""

import dataclasses
import functools
import http.client
import itertools
import json
import re
import shlex
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dilocoxd.answers.site import Problem
from dilocoxd.api.endpoints import ENDPOINTS
from dilocoxd.cli.main import cli
from dilocoxd.cli.watch import messages
from dilocoxd.daemon.observe.ticker import LINE_EVERY_S
from dilocoxd.daemon.peers.dial_back import EVERY_S
from tests.harness.certificates import self_signed
from tests.harness.running.run_directories import found_run, join_run
from tests.harness.running.sites import ROOT, SiteProcess, sites, wait_until
from tests.harness.running.strikes import stood_still_s
from tests.harness.shapes import assert_shape

pytestmark = pytest.mark.processes
PATIENCE_S = 150.0
SLACK_S = 3.0
"""Lines have whole seconds, and are looked for once a second on a machine that does other things too. What the daemon
stood still as a whole is taken off."""
PHASE_S = 1.0
SETTINGS = """
[[operations]]
include-path = "/readyz"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", 503]
"""
"""For schemathesis: "not ready" is an answer of /readyz, not a fault of the server."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SiteProcess, SiteProcess]]:
    """Two daemons that commit rounds together."""
    folder = tmp_path_factory.mktemp("api")
    a = found_run(folder, "a")
    with sites(a):
        a.start_without_model(PHASE_S)
        b = join_run(folder, "b", a)
        with sites(b):
            b.start_without_model(PHASE_S)
            wait_until(lambda: took_part(a) >= 2, "a joint round", PATIENCE_S, a.describe)
            a.wait_height(3, PATIENCE_S)
            yield a, b


def took_part(site: SiteProcess) -> int:
    peers = site.status().get("peers") or {}
    return int(peers.get("took_part_last_round", 0))


def token(site: SiteProcess) -> str:
    return (site.run_dir / "api.token").read_text("ascii").strip()


def post(site: SiteProcess, name: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    """Status and JSON answer of a control request."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{site.port}/v1/control/{name}",
        data=json.dumps(body or {}).encode(),
        headers={"Authorization": f"Bearer {token(site)}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    done = CliRunner().invoke(cli, list(arguments), standalone_mode=False, env={"COLUMNS": "200"})
    if done.exception is not None:
        raise done.exception
    return int(done.return_value), done.output


def test_answers_have_their_documented_shapes(pair: tuple[SiteProcess, SiteProcess]) -> None:
    site, _ = pair
    assert oct((site.run_dir / "api.token").stat().st_mode)[-3:] == "600"
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET" and not isinstance(endpoint.answer, str):
            if endpoint.path == "/readyz":  # a success while it trains: on a busy machine it may be behind for a moment
                wait_until(lambda: site.get("/readyz"), "readyz", PATIENCE_S, site.describe)
            found = site.get(endpoint.path.replace("{round}", "0"))
            assert_shape(endpoint.answer, json.dumps(found))


def test_lines_for_people_say_how_it_goes_and_who_is_there(pair: tuple[SiteProcess, SiteProcess]) -> None:
    """A line a round; never silent for longer than the promise, from the first seconds on; others by their names."""
    a, b = pair
    line = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO round \d+  [12]/2 sites  .* up, .* down", re.MULTILINE)
    wait_until(lambda: line.search(a.log_path.read_text()), "the line of a round", PATIENCE_S, a.describe)
    shown = a.log_path.read_text()
    assert f"{b.status()['name']} is a site of this run" in shown
    assert "INFO starting: waits for " in shown and "round.committed" not in shown
    assert max(silences(a, shown)) <= LINE_EVERY_S + SLACK_S


def test_what_the_page_on_monitoring_types_is_answered(pair: tuple[SiteProcess, SiteProcess]) -> None:
    """All its lines for a shell, with this site's port and directory; of a stream that has no end the first lines."""
    site, _ = pair
    page = (ROOT / "docs" / "operations" / "monitoring.md").read_text(encoding="utf-8")
    here = {"127.0.0.1:8080": f"127.0.0.1:{site.port}", "RUN_DIR": shlex.quote(str(site.run_dir))}
    said = {}
    for shown in re.findall(r"^curl .*$", page, re.M):
        line = functools.reduce(lambda text, name: text.replace(name, here[name]), here, shown)
        endless = " | head -n 4" if "/v1/events" in shown else ""
        done = subprocess.run(["bash", "-c", line + endless], capture_output=True, text=True, check=True, timeout=120)
        said[shown.partition("/v1/")[2].split()[0]] = done.stdout
    assert json.loads(said["status"])["run_id"] == site.status()["run_id"]
    assert "event: " in said["events"]
    assert json.loads(said["control/snapshot"]).get("status") is None, "no refusal (RFC 9457)"


def silences(site: SiteProcess, shown: str) -> list[float]:
    """Seconds between lines for people, less those in which the daemon did not run."""
    told = [time.mktime(time.strptime(row[:19], "%Y-%m-%d %H:%M:%S")) for row in shown.splitlines() if row[:2] == "20"]
    return [end - begin - stood_still_s(site, begin, end) for begin, end in itertools.pairwise(told)]


def test_generated_requests_meet_no_server_error_and_no_other_shape(pair: tuple[SiteProcess, SiteProcess]) -> None:
    """By schemathesis; /v1/events never ends and leave ends the daemon, so they have tests of their own."""
    site, _ = pair
    settings = site.run_dir.parent / "schemathesis.toml"
    settings.write_text(SETTINGS)
    command = [
        sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run", f"http://127.0.0.1:{site.port}/v1/openapi.json",
        "--exclude-path", "/v1/events", "--exclude-path", "/v1/control/leave", "--exclude-path", "/v1/control/reach",
        "-H", f"Authorization: Bearer {token(site)}", "--phases", "coverage,fuzzing", "--max-examples", "8",
        "--seed", "1", "--request-timeout", "60", "--no-color",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=site.run_dir.parent)
    print(done.stdout[-600:])
    assert done.returncode == 0, done.stdout[-6000:]
    assert "generated" in done.stdout
    post(site, "resume")
    wait_until(lambda: site.status().get("state") == "training", "training", PATIENCE_S, site.describe)


def test_pause_stops_contributions_and_others_go_on(pair: tuple[SiteProcess, SiteProcess]) -> None:
    a, b = pair
    assert run("pause", str(b.run_dir), "--reason", "a disk is exchanged")[0] == 0
    wait_until(lambda: b.status().get("state") == "paused", "b paused", PATIENCE_S, b.describe)
    before = wait_until(lambda: a.status().get("height"), "height", PATIENCE_S)

    def goes_on_without_b() -> bool:
        rows = a.get(f"/v1/rounds?from={before + 2}&limit=100") or []
        return any(row["entry_hash"] and len(row["contributors"]) == 1 for row in rows)

    wait_until(goes_on_without_b, "rounds without b", PATIENCE_S, a.describe)
    follows = wait_until(lambda: a.status().get("height"), "height", PATIENCE_S)
    b.wait_height(follows, PATIENCE_S)  # a paused site still follows the shared state
    assert run("resume", str(b.run_dir))[0] == 0
    assert post(b, "resume") == (409, dataclasses.asdict(Problem(
        type="about:blank", title="Conflict", status=409, detail="the site is not paused")))  # fmt: skip
    wait_until(lambda: took_part(a) >= 2, "b contributes again", PATIENCE_S, a.describe)


def test_ping_finds_a_site_by_its_name_and_connections_change_at_run_time(
    pair: tuple[SiteProcess, SiteProcess],
) -> None:
    a, b = pair
    name, peer = b.status()["name"], b.status()["peer_id"]
    answered = wait_until(
        lambda: [found for status, found in [post(a, "ping", {"site": name})] if status == 200], "a ping", PATIENCE_S
    )
    (found,) = answered
    assert found["peer_id"] == peer
    assert found["is_direct"] is True and found["address"].startswith("/ip4/127.0.0.1/tcp/")
    assert 0 < found["round_trip_s"] <= found["worst_round_trip_s"] < PATIENCE_S and abs(found["clock_offset_s"]) < 5
    status, refused = post(a, "ping", {"site": "nobody"})
    assert status == 409 and "no other site is called 'nobody'; known: " in refused["detail"]
    assert post(a, "connect", {"address": "no where"})[0] == 409
    assert post(a, "connect", {"address": b.status()["join_address"]})[0] == 200
    before = a.status()["height"]
    assert post(a, "disconnect", {"site": peer})[0] == 200
    wait_until(lambda: post(a, "ping", {"site": peer})[0] == 200, "a new connection", PATIENCE_S)
    a.wait_height(before + 2, PATIENCE_S)


def test_log_level_and_events(pair: tuple[SiteProcess, SiteProcess]) -> None:
    site, _ = pair
    with urllib.request.urlopen(f"http://127.0.0.1:{site.port}/v1/events", timeout=PATIENCE_S) as stream:
        found = messages(stream)
        assert [next(found)[0] for _ in range(2)] == ["reset", "status"]
        assert run("log-level", "error", str(site.run_dir))[0] == 0
        names = []
        for kind, ident, data in found:
            names += [data["event"]] if kind == "event" else []
            if "log.level_changed" in names and "round.committed" in names:
                assert ident or kind == "status"
                break
    shown = site.log_path.read_text()
    written = (site.run_dir / "logs/events.jsonl").read_text()
    assert shown.count("round.committed") < written.count("round.committed")
    run("log-level", "info", str(site.run_dir))


def test_terminal_shows_tables_and_json(pair: tuple[SiteProcess, SiteProcess]) -> None:
    a, b = pair
    me = b.status()["peer_id"]
    assert b.status()["name"] in run("peers", str(a.run_dir))[1]
    assert json.loads(run("peers", "--json", str(a.run_dir))[1])[0]["peer_id"] == me
    assert "exchange" in run("rounds", "--last", "3", str(a.run_dir))[1]
    assert len(json.loads(run("rounds", "--last", "3", "--json", str(a.run_dir))[1])) == 3
    assert json.loads(run("snapshots", "--json", str(a.run_dir))[1]) == []
    assert "payload" in run("log", "show", str(a.run_dir))[1]
    assert json.loads(run("log", "show", "--last", "2", "--json", str(a.run_dir))[1])[0]["votes"]
    code, text = run("watch", "--once", str(a.run_dir))
    assert code == 0 and "events" in text


def test_doctor_asks_a_peer_to_dial_back(pair: tuple[SiteProcess, SiteProcess]) -> None:
    a, b = pair

    def reached() -> dict[str, Any] | None:
        code, text = run("doctor", "--json", str(a.run_dir))
        found = json.loads(text)
        assert code == (0 if found["ok"] else 1)
        by_check = {one["check"]: one for one in found["findings"]}
        return by_check if by_check["reach"]["level"] == by_check["port_network"]["level"] == "ok" else None

    by_check = wait_until(reached, "b dials back", PATIENCE_S, a.describe, poll_s=EVERY_S)
    assert b.status()["peer_id"] in by_check["reach"]["text"]
    assert by_check["announce"]["level"] == "warning" and by_check["announce"]["remedy"]
    assert by_check["port_api"]["text"].endswith("the daemon listens")

    def is_refused() -> bool:
        status, answer = post(a, "reach")
        return status == 409 and "one try per" in answer["detail"]

    wait_until(is_refused, "two tries within the time of one", PATIENCE_S, a.describe)


def test_certificate_gives_https_and_a_missing_one_is_a_configuration_error(tmp_path: Path) -> None:
    certificate, private = self_signed(tmp_path)
    tls = ["--set", f'api.tls_certificate="{certificate}"', "--set", f'api.tls_key="{private}"']
    site = found_run(tmp_path, "t", *tls)
    with sites(site):
        site.start_without_model(PHASE_S)

        def health() -> str:
            context = ssl.create_default_context(cafile=str(certificate))
            try:
                with urllib.request.urlopen(f"https://127.0.0.1:{site.port}/healthz", context=context) as answer:
                    return str(answer.read().decode())
            except urllib.error.URLError as error:
                assert not isinstance(error.reason, ssl.SSLError), error
                return ""
            except ConnectionError:  # it listens, and has nobody yet who answers
                return ""

        assert json.loads(wait_until(health, "HTTPS answers", PATIENCE_S, site.describe)) == {"ok": True}
        assert run("status", "--json", str(site.run_dir))[0] == 0
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"https://127.0.0.1:{site.port}/healthz")
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://127.0.0.1:{site.port}/healthz")
        assert site.stop() == 0
        certificate.unlink()
        site.start_without_model(PHASE_S)
        assert site.process is not None and site.process.wait(PATIENCE_S) == 78
    said = [line for line in site.log_path.read_text().splitlines() if "api.tls_certificate" in line]
    assert said and "cannot be used" in said[-1] and "Traceback" not in site.log_path.read_text()


def test_leave_is_clean(tmp_path: Path) -> None:
    site = found_run(tmp_path, "c")
    with sites(site):
        site.start_without_model(PHASE_S)
        site.wait_height(1, PATIENCE_S)
        assert run("leave", str(site.run_dir))[0] == 0
        assert site.process is not None and site.process.wait(PATIENCE_S) == 0
        last = json.loads((site.run_dir / "logs/events.jsonl").read_text().splitlines()[-1])
        assert (last["event"], last["reason"]) == ("daemon.stopped", "asked for over the API")
