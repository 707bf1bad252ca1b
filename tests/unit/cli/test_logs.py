"""`dilocoxd logs`: events of a run directory as lines for people, also while the file grows and is turned over."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dilocoxd.cli.logs import Labels, coming, show_line, shown
from dilocoxd.cli.main import cli
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId
from dilocoxd.site_names import short_id
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.swarm.discovery.identity import create, load
from dilocoxd.swarm.discovery.peers_file import PeersFile
from dilocoxd.swarm.discovery.records import sign_record
from dilocoxd.telemetry.catalogue import DaemonStopped, PeerLeft, RoundCommitted
from dilocoxd.telemetry.events import EventLog
from tests.unit.swarm.test_records import record_of

ALICE = "QmV3nFQT4Rz4oTBvXxPZrp8RV3iQWbyZAgNPJXaLiCe1"
BOB = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjbob123"
COMMITTED = RoundCommitted(
    round=1, attempt=0, entry_hash="ab", contributors=(ALICE,), bytes_sent=1, bytes_received=2, exchange_s=0.5
)


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    done = CliRunner().invoke(cli, ["init", "tiny", "--dir", str(tmp_path / "run"), "--port", "0", "--api-port", "0"])
    assert done.exception is None or done.exit_code == 0, done.output
    return tmp_path / "run"


def events(run_directory: Path) -> EventLog:
    return EventLog(run_directory / "logs" / "events.jsonl", level="error", clock=lambda: 1_790_000_000.0)


def run(*arguments: str) -> list[str]:
    done = CliRunner().invoke(cli, ["logs", *arguments], standalone_mode=False, catch_exceptions=False)
    return [line[20:] for line in done.output.splitlines()]


def test_events_are_told_as_on_the_terminal_and_details_only_when_asked(run_directory: Path) -> None:
    log = events(run_directory)
    log.emit(COMMITTED)
    log.emit(PeerLeft(peer=ALICE, reason="left"))
    log.emit(DaemonStopped(reason="SIGINT", exit_code=0))
    with (run_directory / "logs" / "events.jsonl").open("a") as file:
        file.write('{"time": 1790000000.0, "event": "moon.risen", "level": "warning", "phase": 3}\n{"time": 17')
    assert run(str(run_directory)) == [
        "INFO ~aLiCe1 said goodbye",
        "INFO the daemon has ended (SIGINT)",
        "WARNING moon.risen phase=3",
    ]
    assert run(str(run_directory), "--level", "debug", "-n", "4")[0].startswith("DEBUG round.committed round=1 ")
    assert run(str(run_directory), "-n", "1") == ["WARNING moon.risen phase=3"]
    assert len(run(str(run_directory), "-n", "9" * 20)) == 3, "more than any list can hold is all"


def test_while_no_daemon_runs_sites_are_called_what_the_run_directory_remembers(run_directory: Path) -> None:
    """The name a site has with the daemon is the one in its log afterwards: `bert` did not become `~Gaja8e`."""
    run_dir = open_run_dir(run_directory)
    manifest, site = run_dir.load()
    bert = create(run_directory / "bert.key")
    record = sign_record(bert, replace(record_of(bert.peer_id), run_id=manifest.run_id, name="bert"))
    peers = PeersFile(run_dir.peers_json)
    peers.remember(bert.peer_id, ("/ip4/10.0.0.1/tcp/31337",), 1, record)
    peers.remember(PeerId(ALICE), ("/ip4/10.0.0.2/tcp/31337",), 1)
    peers.save()
    log = events(run_directory)
    for peer in (bert.peer_id, ALICE, load(run_dir.identity(site)).peer_id):
        log.emit(PeerLeft(peer=peer, reason="left"))
    assert run(str(run_directory)) == [
        "INFO bert said goodbye", "INFO ~aLiCe1 said goodbye", f"INFO {site.site.shown} said goodbye",
    ]  # fmt: skip
    run_dir.peers_json.write_text("{")
    assert run(str(run_directory))[0] == f"INFO {short_id(bert.peer_id)} said goodbye"
    assert run_dir.peers_json.read_text() == "{", "who only reads does not put the file aside"


def test_long_lines_are_broken_between_words_behind_date_and_time(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "2026-11-22 14:06:46 WARNING attic does not answer any more, for 12 s: the connection broke"
    show_line(line)
    monkeypatch.setattr("dilocoxd.cli.logs.width", lambda *, is_wide: 60)
    show_line(line)
    whole, *shown = capsys.readouterr().out.splitlines()
    assert whole == line and " ".join(part.strip() for part in shown) == line
    assert max(map(len, shown)) <= 60 and {part[:20] for part in shown[1:]} == {" " * 20}


def test_a_site_that_is_new_is_asked_for_and_not_at_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    known, asked = {ALICE: "alice"}, []

    def names_of(target: str | None) -> dict[str, str]:
        asked.append(target)
        return dict(known)

    monkeypatch.setattr("dilocoxd.cli.logs.names_of", names_of)
    label = Labels("run")
    assert (label(ALICE), label(BOB)) == ("alice", "~bob123") and len(asked) == 1
    monkeypatch.setattr("dilocoxd.cli.logs.ASK_AGAIN_S", 0.0)
    known[BOB] = "bob"
    assert (label(BOB), label(ALICE)) == ("bob", "alice") and len(asked) == 2
    known.clear()
    assert label("QmCarol9999") == "~ol9999" and label(BOB) == "bob", "the daemon has ended; its names are good still"


def test_a_run_that_never_started_has_no_log(run_directory: Path) -> None:
    with pytest.raises(ConfigError, match="never started here"):
        run(str(run_directory))


NEW = '{"new": 1}\n'
WRITER = f"""
import pathlib, sys, time
while True:
    with pathlib.Path(sys.argv[1]).open("a") as file:
        file.write({NEW!r})
    time.sleep(0.1)
"""


def test_following_sees_what_comes_and_survives_a_turned_over_file(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"old": 1}\n')
    lines = coming(path)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as writer:
        try:
            assert next(lines) == NEW  # it may look for the first time when some have come
        finally:
            writer.kill()
    path.replace(tmp_path / "events.jsonl.1")
    path.write_text('{"newer": 1}\n')
    assert next(line for line in lines if line != NEW) == '{"newer": 1}\n'


def test_line_that_comes_right_before_the_file_is_turned_over_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / "events.jsonl", Path.open
    path.touch()

    def open_turning(self: Path, *arguments: Any, **options: Any) -> Any:
        file = opened(self, *arguments, **options)
        readline = file.readline

        def read_then_turn() -> str:
            line = str(readline())
            if not line and not (tmp_path / "events.jsonl.1").exists():
                with opened(path, "a") as more:
                    more.write('{"last": 1}\n')
                path.rename(tmp_path / "events.jsonl.1")
                with opened(path, "w") as newer:
                    newer.write('{"newer": 1}\n')
            return line

        file.readline = read_then_turn
        return file

    monkeypatch.setattr(Path, "open", open_turning)
    lines = coming(path)
    assert [next(lines), next(lines)] == ['{"last": 1}\n', '{"newer": 1}\n']


def test_what_is_no_event_is_left_out() -> None:
    assert list(shown(iter(["", "[]", "{}", '{"level": "info"}', "nonsense"]), "debug", str)) == []
