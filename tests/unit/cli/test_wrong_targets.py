"""Wrong input in the words of who typed it: a folder that is not there, a section that does not exist, silence."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from dilocoxd.cli.client import TOKEN_VARIABLE, client_for
from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.declared.checking import check_config
from dilocoxd.cli.joining.join import what_joining_means
from dilocoxd.cli.joining.newcomer import Newcomer, Target
from dilocoxd.cli.main import cli
from dilocoxd.cli.shell.step_announcer import StepAnnouncer
from dilocoxd.config.loading import validated
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError, PeerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.refusals import other_protocols
from tests.harness.running.run_directories import free_port


def test_a_missing_folder_is_not_taken_for_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked over HTTP: `http://mistyped-dir/v1/status does not answer (Name or service not known)`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny-0123").mkdir()
    (tmp_path / "tiny-0123" / "run.toml").write_text("")
    with pytest.raises(ConfigError, match=r"^tiny-0132: there is no such run directory; did you mean tiny-0123\?$"):
        client_for("tiny-0132")
    with pytest.raises(ConfigError, match=r"runs/x: there is no such run directory; give a run directory"):
        client_for("runs/x")
    assert client_for("localhost:8080").url == "http://localhost:8080"


@contextmanager
def answering(words: bytes) -> Iterator[str]:
    """Address of a program that says `words` to whoever comes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(1 << 16)
                taken.sendall(words)

        told = threading.Thread(target=answer)
        told.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        told.join()


@pytest.mark.parametrize("words", [
    b"SSH-2.0-x \x1b[2J\r\n", b"\x13/multistream/1.0.0\n", b"HTTP/1.0 200 OK\r\n\r\n<html>",
    b"HTTP/1.0 200 OK\r\n\r\n\xff", b"HTTP/1.0 200 OK\r\n\r\n" + 20_000 * b"[",
])  # fmt: skip
def test_what_is_no_daemon_is_told_in_our_words(words: bytes) -> None:
    """The port for other sites in place of the API's was a traceback."""
    with answering(words) as place, pytest.raises(PeerError) as refused:
        client_for(place).ask_json("/v1/status")
    assert "does not answer (what answers there is no dilocoxd daemon's API); check" in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("target", [
    "localhost:port", "127.0.0.1:99999", "127.0.0.1:0", ":", ":80", "http://",
    "http://[::1", "http://a b:80", "file:///etc/passwd", "ftp://x:1",
])  # fmt: skip
def test_what_is_no_address_of_an_api_is_refused_before_anybody_is_asked(target: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is no address of a daemon's API; give a run directory, or an address like "
    ):
        client_for(target)


@pytest.mark.parametrize("token", ["secret word", "geheim\n\nnis", "r\u00e4tsel"])
def test_what_no_header_can_carry_is_no_token_and_not_shown(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was shown: `does not answer (Invalid header value b'Bearer ...')`."""
    monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(ConfigError, match=rf"^{TOKEN_VARIABLE} in the environment is no token ") as refused:
        client_for("127.0.0.1:1")
    assert token not in str(refused.value)
    monkeypatch.setenv(TOKEN_VARIABLE, " secret\n")
    assert client_for("127.0.0.1:1").token == "secret"


def test_an_unknown_section_is_called_a_section() -> None:
    with pytest.raises(ConfigError, match=r"unknown section netwrk; did you mean network\?"):
        validated(SiteConfig, {"netwrk": {"port": 1}}, source="options")
    with pytest.raises(ConfigError, match=r"unknown section foo; remove it, known here: site, network, "):
        validated(SiteConfig, {"foo": {"bar": 1}}, source="options")
    with pytest.raises(ConfigError, match=r"unknown field network.prt; did you mean network.port\?"):
        validated(SiteConfig, {"network": {"prt": 1}}, source="options")


def test_a_section_of_the_run_in_site_toml_is_called_one(tmp_path: Path) -> None:
    """It was `unknown section snapshot; remove it`."""
    path = tmp_path / "site.toml"
    path.write_text("[snapshot]\nevery_rounds = 4\n")
    with pytest.raises(ConfigError, match=r"snapshot belongs to run.toml, .* --from RUN_DIR --set snapshot.FIELD="):
        load_site(path)


@pytest.mark.parametrize(("name", "said"), [("medium", "use one of demo, small, tiny or the path"),
                                            ("tiny:spase", "no strategy 'spase'; use one of ")])  # fmt: skip
def test_check_config_names_the_presets(name: str, said: str) -> None:
    """It was `medium: cannot be read (No such file or directory)`."""
    done = CliRunner().invoke(check_config, ["--json", name], standalone_mode=False)
    assert done.return_value == 78
    (problem,) = json.loads(done.output)["problems"]
    assert said in problem


def test_versions_that_differ_are_told_alike_to_both_sides() -> None:
    assert other_protocols(asked=1, asking=2) == (
        "the site that was asked speaks protocol 1, the one that asks 2; update dilocoxd on the older one"
    )


def test_join_says_at_once_what_it_asks_and_in_words_of_people_what_joining_means(tmp_path: Path) -> None:
    """It was silent until a peer had answered, and then needed `0.0 GiB of disk` and exchanged `int8, identity`."""
    port = free_port()
    peer = "QmV3nFQT4Rz4mq9KbBqZzNnQKp1Zy2a1Yx8KZAgNPJX42n"
    done = CliRunner().invoke(cli, ["join", f"127.0.0.1:{port}/{peer}", "--dir", str(tmp_path / "run")])
    assert f"asking 127.0.0.1 port {port} for the run" in done.output and done.exit_code
    manifest = new_manifest("tiny", {"admission": {"authorities": ["ab" * 32]}})
    rows = dict(
        what_joining_means(manifest, SiteConfig(), Newcomer(Target((), None), tmp_path, PeerId(peer), None, None))
    )
    assert "GiB" not in rows["needs"] and " 0.0 " not in rows["needs"]
    assert rows["exchange"] == "int8, every 8 steps"
    assert rows["admission"] == f"by invite; this authority decides: {'ab' * 8}"


def test_a_long_step_is_never_silent() -> None:
    said: list[str] = []
    repeated = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("tokenising (for"):
            repeated.set()

    with StepAnnouncer(say, "looking", every_s=0.02) as heart:
        heart.note("tokenising")
        assert repeated.wait(30)
    assert said[0] == "looking" and "tokenising" in said and not heart._thread.is_alive()


def test_a_site_without_an_api_is_looked_at_all_the_same(tmp_path: Path) -> None:
    """`doctor` refused it as a whole: `so this site has no API; give it a port in site.toml`."""
    where = str(tmp_path / "run")
    made = ("init", "tiny", "--dir", where, "--host", "127.0.0.1", "--port", "0", "--api-port", "0")
    assert CliRunner().invoke(cli, made, standalone_mode=False, catch_exceptions=False).return_value == 0
    with socket.create_server(("127.0.0.1", load_site(tmp_path / "run" / "site.toml").network.port)):
        shown = CliRunner().invoke(cli, ("doctor", where, "--json"), standalone_mode=False, catch_exceptions=False)
    found = {one["check"]: one for one in json.loads(shown.stdout)["findings"]}
    assert found["identity"]["level"] == "ok"
    assert found["port_network"]["level"] == "info", "its own daemon may be who listens"
    assert found["reach"]["text"].startswith("api.port = 0: a daemon cannot be asked")
