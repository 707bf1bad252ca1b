"""Commands that ask a daemon and get no answer, or that of another one: done as they say, and answered."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dilocoxd.cli import client as cli_client, commands
from dilocoxd.cli.client import TOKEN_VARIABLE
from dilocoxd.cli.model import export
from dilocoxd.daemon.process.token import load_or_create_token
from dilocoxd.ids import RoundIndex
from tests.harness.running.run_directories import free_port
from tests.remedies.refused.rooms.standing import Standing
from tests.remedies.refused.rooms.told import failed
from tests.remedies.test_findings import invoke


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Standing:
    return Standing(tmp_path_factory.mktemp("standing"))


class Other(http.server.BaseHTTPRequestHandler):
    """Answers everybody with a table of its own."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"hello": "world"}).encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def other_program() -> Iterator[int]:
    """Its port."""
    with http.server.HTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_no_daemon_answers(site: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli_client, "DEFAULT_URL", f"http://127.0.0.1:{free_port()}")
    with failed("cli/client.py", "give RUN_DIR or the daemon's URL, and check that the daemon runs and that api.port"):
        invoke("status")
    with failed("cli/client.py", "VALUE; check that the daemon runs and that api.port is right"):
        invoke("status", site.url)
    with failed("cli/client.py", "if the daemon does not run, start it with `dilocoxd run VALUE`"):
        invoke("status", site.run)
    with ExitStack() as stack:

        def begin(run_dir: object) -> int:
            stack.enter_context(site)
            return 0

        monkeypatch.setattr(commands, "run_in_foreground", begin)
        invoke("run", site.run)
        for target in (site.run, site.url):
            assert site.run_dir.load()[0].run_id in invoke("status", target).output


def test_another_program_answers(site: Standing) -> None:
    with other_program() as port, site:
        invoke("config", "set", site.run, f"api.port={port}")
        with failed(
            "cli/client.py", "is not a dilocoxd daemon, or one of another version (VALUE: VALUE); check api.port"
        ):
            invoke("status", site.run)
        invoke("config", "set", site.run, f"api.port={site.url.rpartition(':')[2]}")
        invoke("status", site.run)


def test_the_daemon_of_another_site_answers(site: Standing, tmp_path: Path) -> None:
    other = Standing(tmp_path, "other")
    port = free_port()
    with site:
        invoke("config", "set", other.run, f"api.port={site.url.rpartition(':')[2]}")
        load_or_create_token(other.run_dir.path / "api.token")
        with failed("cli/client.py", "see which with `dilocoxd status VALUE`"):
            invoke("pause", other.run)
        assert str(site.run_dir.load()[0].run_id) in invoke("status", site.url).output
        with failed("cli/client.py", "give this one another with `dilocoxd config set VALUE api.port=PORT`"):
            invoke("status", other.run)
        other.listen_at(port)
        with other:
            assert str(other.run_dir.load()[0].run_id) in invoke("status", other.run).output


def test_a_token_that_is_not_given(site: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with site:
        with failed("cli/client.py", "give the site's RUN_DIR instead of the URL, or put what is in its file"):
            invoke("pause", site.url)
        invoke("pause", site.run)
        monkeypatch.setenv(TOKEN_VARIABLE, (site.run_dir.path / "api.token").read_text().strip())
        invoke("resume", site.url)
        monkeypatch.setenv(TOKEN_VARIABLE, "left over from another site")
        invoke("pause", site.run)


def test_an_export_of_a_snapshot_that_does_not_come(
    site: Standing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state that it shall be of is in no snapshot, and nobody writes one: the trainers do not run."""
    monkeypatch.setattr(export, "NOW_TIMEOUT_S", 0.0)
    monkeypatch.setattr(export, "LOOK_S", 0.0)
    with site:
        site.daemon.ledger.chain = replace(site.daemon.ledger.chain, height=RoundIndex(3))
        with failed("cli/model/export.py", "leave out --now to take the newest one"):
            invoke("export", site.run, "--out", str(tmp_path / "out"), "--now")
        invoke("export", site.run, "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "model.safetensors").is_file()
