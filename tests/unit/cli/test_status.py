"""`dilocoxd status` against a real HTTP server that serves the documented status."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dilocoxd.answers.alerts import StandingAlert
from dilocoxd.answers.status import ExchangeTimes, Status
from dilocoxd.api.responses.encoding import encoded
from dilocoxd.cli.client import client_for
from dilocoxd.cli.screens.status import exchange
from dilocoxd.cli.status import for_others, status
from dilocoxd.errors import PeerError
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import FakeView

VIEW = FakeView(7)
ALERT = StandingAlert(code="clock_skew", severity="warning", text="clock is off by 12 s", remedy="start NTP", since=1.0)
STATUS: dict[str, Any] = json.loads(
    encoded(
        changed(
            VIEW.status(), peer_id="QmSelf", run_id="demo-0123456789abcdef", state="training",
            waiting_for="2 of 3 peers are not ready", phase__phase=9, phase__inner_step=12, round__attempt=1,
            losses__validation=None, totals__idle_s=1.0, totals__train_s=99.0, peers__known=3, peers__live=2,
            peers__took_part_last_round=2, peers__missed_last_round=1,
            join_address="/ip4/10.0.0.1/tcp/1/p2p/QmSelf",
            admission="open",
            alerts=(ALERT,),
        )
    )
)  # fmt: skip
PEERS = json.loads(encoded([changed(VIEW.peers()[0], peer_id="QmOther", name="other", took_part_last_round=False)]))
NEWER = {**STATUS, "mood": "fine"}
OLDER = {name: value for name, value in STATUS.items() if name != "totals"}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = {"/v1/status": STATUS, "/v1/peers": PEERS, "/other/v1/status": [1],
                "/newer/v1/status": NEWER, "/newer/v1/peers": PEERS, "/older/v1/status": OLDER,
                }.get(self.path)  # fmt: skip
        data = json.dumps(body).encode() if body is not None else b"<html>"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Keep test output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_status_shows_what_matters(url: str) -> None:
    done = CliRunner().invoke(status, [url], env={"COLUMNS": "160"}, catch_exceptions=False)
    for part in (
        "demo-0123456789abcdef",
        "waits for  2 of 3 peers are not ready",
        "phase      step 12 of 20",
        "7 exchanging, attempt 1, 2 of 3 sites in the one before (a smaller step)",
        "3.200 here, shared model not measured yet",
        "waited 1.0% of the time",
        "\njoin with: dilocoxd join /ip4/10.0.0.1/tcp/1/p2p/QmSelf\n",
        "alpha  QmSelf",
        "alpha (here)",
        "other",
        "alert clock_skew (warning): clock is off by 12 s; start NTP",
    ):
        assert part in done.output


def test_an_exchange_stands_beside_what_was_predicted_and_says_what_the_ratio_is_of() -> None:
    assert exchange(ExchangeTimes(predicted_s=0.3, measured_s=0.4)) == (
        "0.40 s, predicted 0.30 s (predicted / measured 0.75)"
    )
    assert exchange(ExchangeTimes(predicted_s=0.3, measured_s=0.0)) == exchange(None) == ""


@pytest.mark.parametrize(
    ("given", "command"),
    [("", "dilocoxd invite RUN_DIR"), ("one", "dilocoxd invite one"), ("a b", "dilocoxd invite 'a b'")],
)
def test_the_command_that_invites_others_names_the_run_directory_that_was_given(
    given: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command was named where it is refused, too: at each site without an authority's key."""
    monkeypatch.chdir(tmp_path)
    found = changed(VIEW.status(), admission="invite")
    assert isinstance(found, Status)
    if given:
        Path(given).mkdir()
        assert "this site has none" in for_others(found, given)
        (Path(given) / "authority.key").touch()
    assert for_others(found, given) == f"invite others with: {command}"


def test_json_is_what_the_api_says(url: str) -> None:
    done = CliRunner().invoke(status, ["--json", url], catch_exceptions=False)
    assert json.loads(done.output) == {"status": STATUS, "peers": PEERS}


def test_other_programs_on_the_port_are_told_apart(url: str) -> None:
    with pytest.raises(PeerError, match="does not answer"):
        client_for(url).ask("/page", Status)
    with pytest.raises(PeerError, match="is not a dilocoxd daemon"):
        CliRunner().invoke(status, [url + "/other"], catch_exceptions=False)


def test_daemon_of_another_version_is_read_as_far_as_it_can_be(url: str) -> None:
    assert CliRunner().invoke(status, [url + "/newer"], catch_exceptions=False).exit_code == 0
    with pytest.raises(PeerError, match=r"another version \(totals: "):
        CliRunner().invoke(status, [url + "/older"], catch_exceptions=False)


def test_nobody_there_says_what_to_check() -> None:
    with pytest.raises(PeerError, match=r"does not answer .* check that the daemon runs"):
        CliRunner().invoke(status, ["127.0.0.1:9"], catch_exceptions=False)


def test_outside_a_run_directory_it_asks_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dilocoxd.cli.client.DEFAULT_URL", "http://127.0.0.1:9")
    with pytest.raises(PeerError, match=r"this folder is no run directory: give RUN_DIR or the daemon's URL"):
        CliRunner().invoke(status, [], catch_exceptions=False)


def test_target_may_be_left_out_or_lack_the_scheme() -> None:
    assert client_for(None).url == "http://127.0.0.1:8080"
    assert client_for("host:1/").url == "http://host:1"
    assert client_for("https://host/").url == "https://host"
