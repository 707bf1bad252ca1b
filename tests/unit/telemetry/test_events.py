"""Events: names, JSON lines, lines for people, rotation, a disk that refuses."""

import dataclasses
import fcntl
import io
import json
import os
import pty
import re
import struct
import termios
from pathlib import Path

import pytest

from dilocoxd.errors import StoreError
from dilocoxd.telemetry.catalogue import AlertRaised, PeerLost, PhaseStarted, RoundCommitted, RunCompleted, WorkerDied
from dilocoxd.telemetry.events import EventLog
from dilocoxd.telemetry.kinds import event_types

DIED = WorkerDied(worker="outer", pid=7, reason="signal 9", restarts_left=3)


def test_names_are_unique_and_say_what_has_happened() -> None:
    names = [kind.name for kind in event_types()]
    assert len(set(names)) == len(names) >= 25
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)?", name) for name in names)
    for kind in event_types():
        assert dataclasses.is_dataclass(kind)


def test_event_is_one_json_line_and_one_line_for_people(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = EventLog(tmp_path / "logs" / "events.jsonl", stream=stream, clock=lambda: 12.5)
    log.emit(DIED)
    log.close()
    record = json.loads((tmp_path / "logs" / "events.jsonl").read_text())
    assert record == {
        "time": 12.5,
        "event": "worker.died",
        "level": "warning",
        "worker": "outer",
        "pid": 7,
        "reason": "signal 9",
        "restarts_left": 3,
    }
    assert stream.getvalue().endswith('WARNING worker.died worker=outer pid=7 reason="signal 9" restarts_left=3\n')


def test_level_hides_from_the_stream_but_not_from_the_file(tmp_path: Path) -> None:
    stream = io.StringIO()
    path = tmp_path / "events.jsonl"
    log = EventLog(path, level="info", stream=stream)
    log.emit(PhaseStarted(phase=1, base_round=0, inner_steps=5))
    assert stream.getvalue() == ""
    assert json.loads(path.read_text())["event"] == "phase.started"


def test_file_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, stream=io.StringIO(), file_bytes_max=1000)
    for number in range(200):
        log.emit(PhaseStarted(phase=number, base_round=0, inner_steps=5))
    log.close()
    assert path.stat().st_size < 1200
    old = path.with_name("events.jsonl.1")
    lines = old.read_text().splitlines() + path.read_text().splitlines()
    assert json.loads(lines[-1])["phase"] == 199
    assert [json.loads(line)["phase"] for line in lines] == list(range(200 - len(lines), 200))


def test_listener_gets_every_event(tmp_path: Path) -> None:
    seen: list[dict[str, object]] = []
    log = EventLog(None, stream=io.StringIO())
    log.listen(seen.append)
    log.emit(
        RoundCommitted(
            round=1, attempt=0, entry_hash="ab", contributors=("a", "b"), bytes_sent=1, bytes_received=2, exchange_s=0.5
        )
    )
    assert seen[0]["contributors"] == ("a", "b")


def test_place_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        EventLog(tmp_path / "file" / "events.jsonl")


def test_full_disk_is_told_once_and_events_go_on(tmp_path: Path) -> None:
    stream = io.StringIO()
    log = EventLog(Path("/dev/full"), stream=stream)
    log.emit(DIED)
    log.emit(DIED)
    assert stream.getvalue().count("events are no longer written") == 1
    assert stream.getvalue().count("worker.died") == 2


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("code", "mark"), [("stop_list", ""), ("left_out", "WARNING "), ("disk_low", "ERROR ")])
def test_alert_is_shown_with_its_own_severity(code: str, mark: str) -> None:
    stream = Screen()
    seen: list[dict[str, object]] = []
    log = EventLog(None, stream=stream)
    log.listen(seen.append)
    log.emit(AlertRaised(code=code, text="text", remedy="remedy"))
    assert f" {mark}alert {code}: text; remedy\n" in stream.getvalue()
    assert seen[0]["level"] == {"": "info", "WARNING ": "warning", "ERROR ": "error"}[mark]


COMMITTED = RoundCommitted(
    round=1, attempt=0, entry_hash="ab" * 32, contributors=("a", "b"), bytes_sent=1, bytes_received=2, exchange_s=0.5
)
LOST = PeerLost(peer="attic", reason="connection broke", silent_s=12.0)


def test_the_end_of_a_run_is_told_in_words() -> None:
    screen = Screen()
    EventLog(None, stream=screen).emit(RunCompleted(height=53, tokens=60_288))
    assert screen.getvalue().endswith(" the run is complete: 60,288 tokens in 53 rounds\n")


def test_details_of_a_round_are_debug_for_people_and_whole_in_the_file(tmp_path: Path) -> None:
    """Four lines a round of equal weight drowned what mattered; the line of the round says the same."""
    screen = Screen()
    log = EventLog(tmp_path / "events.jsonl", stream=screen)
    log.emit(COMMITTED)
    assert screen.getvalue() == ""
    assert json.loads((tmp_path / "events.jsonl").read_text())["level"] == "info"
    log.level = "debug"
    log.emit(COMMITTED)
    assert "round.committed round=1" in screen.getvalue()


def test_a_terminal_gets_the_time_and_a_journal_date_and_level() -> None:
    screen, file = Screen(), io.StringIO()
    for stream in (screen, file):
        log = EventLog(None, stream=stream, clock=lambda: 1_790_000_000.0)
        log.emit(LOST)
        log.say("round 1  2/2 sites")
    said = "attic does not answer any more, for 12 s: connection broke"
    assert re.fullmatch(rf"\d\d:\d\d:\d\d WARNING {said}\n\d\d:\d\d:\d\d round 1  2/2 sites\n", screen.getvalue())
    day = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(rf"{day} WARNING {said}\n{day} INFO round 1  2/2 sites\n", file.getvalue())


@pytest.mark.parametrize(("columns", "shown"), [
    (80, "round 7  3/3 sites  loss 3.41 (val 3.40)  next in ~2 s"), (62, "round 7  3/3 sites  loss 3.41 (val 3.40)"),
    (30, "round 7  3/3 sites"), (5, "round 7"),
])  # fmt: skip
def test_a_line_of_how_it_goes_is_one_line_of_the_terminal(columns: int, shown: str) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(master, "rb", buffering=0) as screen, os.fdopen(slave, "w") as stream:
        EventLog(None, stream=stream).say("round 7  3/3 sites  loss 3.41 (val 3.40)  next in ~2 s")
        assert screen.read(1000).decode()[len("12:34:56 ") :] == f"{shown}\r\n"


@pytest.mark.parametrize("columns", [40, 80])
def test_a_long_warning_is_broken_between_words_on_a_terminal_and_whole_in_a_journal(columns: int) -> None:
    remedy = "free some space there, then run `dilocoxd run /srv/run`"
    event = AlertRaised(code="disk_low", text="a snapshot of 2.9 GB does not fit into the 1.1 GB left", remedy=remedy)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    file = io.StringIO()
    EventLog(None, stream=file).emit(event)
    with os.fdopen(master, "rb", buffering=0) as screen, os.fdopen(slave, "w") as stream:
        EventLog(None, stream=stream).emit(event)
        shown = screen.read(2000).decode().removesuffix("\r\n").split("\r\n")
    assert len(shown) > 1 and max(map(len, shown)) <= columns
    assert {line[:9] for line in shown[1:]} == {" " * 9}, "below the words, not below the time"
    assert any("`dilocoxd run /srv/run`" in line for line in shown), "a command to be copied is on one line"
    (whole,) = file.getvalue().splitlines()
    assert " ".join(line.strip() for line in shown).partition(" ")[2] == whole.split(" ", 2)[2]


def test_lines_of_how_it_goes_are_info() -> None:
    screen = Screen()
    log = EventLog(None, stream=screen, level="warning")
    log.say("round 1  2/2 sites")
    assert screen.getvalue() == ""
