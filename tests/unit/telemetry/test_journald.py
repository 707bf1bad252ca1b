"""Events for the journal: the datagram that systemd documents, read back; a full or missing journal blocks nothing."""

import io
import os
import socket
import struct
import sys
from pathlib import Path

import pytest

from dilocoxd.telemetry.catalogue import RoundAbandoned, ValidationMeasured
from dilocoxd.telemetry.events import EventLog, journal_of
from dilocoxd.telemetry.journald import Journald, datagram, is_journal


def parsed(data: bytes) -> dict[str, str]:
    """Fields of a datagram, by the rules of the native protocol."""
    found: dict[str, str] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, mark, value = line.partition(b"=")
        if mark:
            found[name.decode()], data = value.decode(), rest
        else:
            (length,) = struct.unpack_from("<Q", rest)
            found[name.decode()] = rest[8 : 8 + length].decode()
            assert rest[8 + length : 9 + length] == b"\n"
            data = rest[9 + length :]
    return found


@pytest.fixture
def journal(tmp_path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    server.bind(str(tmp_path / "socket"))
    server.settimeout(60)
    return server


def test_event_arrives_with_all_its_fields(tmp_path: Path, journal: socket.socket) -> None:
    stream = io.StringIO()
    log = EventLog(None, stream=stream, clock=lambda: 5.0, journal=Journald(tmp_path / "socket"))
    log.emit(RoundAbandoned(round=7, attempt=1, reason="peer lost:\nno answer", waited_s=2.5))
    log.emit(ValidationMeasured(round=8, validation_loss=3.25))
    found = parsed(journal.recv(65536))
    assert found["PRIORITY"] == "4" and found["SYSLOG_IDENTIFIER"] == "dilocoxd"
    assert found["DILOCOXD_EVENT"] == "round.abandoned" and found["DILOCOXD_ROUND"] == "7"
    assert found["DILOCOXD_REASON"] == "peer lost:\nno answer"
    assert found["MESSAGE"] == "round 7: attempt 1 was given up: peer lost:\nno answer"
    assert parsed(journal.recv(65536))["PRIORITY"] == "7", "a detail"
    assert stream.getvalue() == "", "not on the stream as well"
    journal.close()


def test_full_journal_drops_and_counts(tmp_path: Path, journal: socket.socket) -> None:
    sender = Journald(tmp_path / "socket")
    for index in range(10_000):
        sender.send({"event": "a", "n": index}, "x" * 5000, "info")
        if sender.num_dropped:
            break
    assert sender.num_dropped
    sender.close()
    journal.close()


def test_no_journal_is_no_error(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Journald(tmp_path / "nobody")
    assert journal_of(io.StringIO(), {"JOURNAL_STREAM": "1:2"}) is None
    assert journal_of(sys.__stderr__ or io.StringIO(), {}) is None


def test_stream_is_recognised_by_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        status = os.fstat(file.fileno())
        assert is_journal(file.fileno(), {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        assert not is_journal(file.fileno(), {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"})
    assert not is_journal(-1, {"JOURNAL_STREAM": "1:2"})


def test_long_values_are_cut() -> None:
    assert len(datagram({"event": "a", "text": "y" * 10**6}, "z" * 10**6, "info")) < 20_000


def test_names_are_those_that_the_journal_accepts() -> None:
    names = parsed(datagram({"event": "a", "h\u00e4?x y": 1}, "line", "debug"))
    assert all(name.isascii() and name.replace("_", "").isalnum() and name[0] != "_" for name in names)
