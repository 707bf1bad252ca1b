"""`dilocoxd status` against a real HTTP server that serves the documented status."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from dilocoxd.cli.client import client_for
from dilocoxd.cli.status import in_bytes, status
from dilocoxd.errors import PeerError

STATUS: dict[str, Any] = {
    "peer_id": "QmSelf",
    "run_id": "demo-0123456789abcdef",
    "state": "training",
    "waiting_for": "2 of 3 peers are not ready",
    "height": 7,
    "chain_head": "ab" * 32,
    "anchor_sha256": "cd" * 32,
    "phase": {"phase": 9, "inner_step": 12, "inner_steps": 20},
    "round": {"round": 7, "attempt": 1, "state": "exchanging"},
    "totals": {"tokens": 123456, "bytes_sent": 2048, "bytes_received": 10, "idle_s": 1.0, "train_s": 99.0,
               "contributions": 6, "rounds_committed": 7},
    "losses": {"inner": 3.2, "validation": None},
    "peers": {"known": 3, "live": 2, "took_part_last_round": 2, "missed_last_round": 1},
    "join_address": "/ip4/10.0.0.1/tcp/1/p2p/QmSelf",
    "alerts": [{"code": "clock_skew", "text": "clock is off by 12 s", "remedy": "start NTP"}],
}  # fmt: skip
PEERS = [{"peer_id": "QmOther", "is_live": True, "took_part_last_round": False, "height": 6, "last_seen_s": 2.0}]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = {"/v1/status": STATUS, "/v1/peers": PEERS, "/other/v1/status": [1]}.get(self.path)
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
        "2 of 3 peers are not ready",
        "9: 12 of 20 inner steps",
        "7: exchanging, attempt 1",
        "inner 3.200, validation -",
        "1.0% of the time",
        "3 known, 2 live, 2 in the last round (2 of 3: a smaller step)",
        "dilocoxd join /ip4/10.0.0.1/tcp/1/p2p/QmSelf",
        "QmOther",
        "alert clock_skew: clock is off by 12 s -> start NTP",
    ):
        assert part in done.output


def test_json_is_what_the_api_says(url: str) -> None:
    done = CliRunner().invoke(status, ["--json", url], catch_exceptions=False)
    assert json.loads(done.output) == {"status": STATUS, "peers": PEERS}


def test_other_programs_on_the_port_are_told_apart(url: str) -> None:
    with pytest.raises(PeerError, match="does not answer"):
        client_for(url).ask("/page")
    with pytest.raises(PeerError, match="is not a dilocoxd daemon"):
        CliRunner().invoke(status, [url + "/other"], catch_exceptions=False)


def test_nobody_there_says_what_to_check() -> None:
    with pytest.raises(PeerError, match=r"does not answer .* check that the daemon runs"):
        CliRunner().invoke(status, ["127.0.0.1:9"], catch_exceptions=False)


def test_target_may_be_left_out_or_lack_the_scheme() -> None:
    assert client_for(None).url == "http://127.0.0.1:8080"
    assert client_for("host:1/").url == "http://host:1"
    assert client_for("https://host/").url == "https://host"


def test_bytes_for_people() -> None:
    assert [in_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
