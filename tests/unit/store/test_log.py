"""The log keeps what was appended, cuts only a torn tail, and refuses everything else that is not its chain."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.ids import Digest, RunId
from dilocoxd.store.log import EntryLog, PayloadSource
from tests.unit.store.chains import (
    GENESIS,
    LENGTHS,
    RUN,
    append,
    new_log,
    payload_file,
    payload_of,
    signed,
    snapshot_of,
)


def test_reopened_log_has_the_same_chain_and_payloads(tmp_path: Path) -> None:
    log = new_log(tmp_path, 5)
    again = EntryLog(tmp_path, RUN, GENESIS)
    assert (again.height, again.head, again.cut_tail) == (5, log.head, "")
    assert [entry.entry.round for entry in again.entries()] == [0, 1, 2, 3, 4]
    assert [entry.entry.round for entry in again.entries(2, 4)] == [2, 3]
    assert again.hash_at(0) == GENESIS
    assert again.hash_at(3) == again.entry(3).entry.parent
    for index in range(5):
        place = again.payload(index)
        assert Path(place.path).read_bytes()[place.offset : place.offset + place.length] == payload_of(index)
    assert again.verify() == []


def test_empty_log_has_the_genesis_head(tmp_path: Path) -> None:
    log = EntryLog(tmp_path / "log", RUN, GENESIS)
    assert (log.height, log.head, list(log.entries()), log.verify()) == (0, GENESIS, [], [])


def test_payload_is_taken_from_any_offset(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    with payload_file(0, prefix=b"x" * 777) as source:
        log.append(signed(0, GENESIS), source)
    assert log.verify() == []


@pytest.mark.parametrize("cut", [0, 5, 24, 100, 400, 5000, -1])
def test_torn_tail_is_cut_and_said(tmp_path: Path, cut: int) -> None:
    new_log(tmp_path, 3)
    last = sorted(tmp_path.iterdir())[-1]
    os.truncate(last, cut if cut >= 0 else last.stat().st_size - 1)
    log = EntryLog(tmp_path, RUN, GENESIS)
    assert log.height == 2
    assert "entry 2" in log.cut_tail
    append(log, 2)
    assert EntryLog(tmp_path, RUN, GENESIS).height == 4


def test_every_flipped_byte_of_the_last_record_is_noticed(tmp_path: Path) -> None:
    new_log(tmp_path, 2)
    last = sorted(tmp_path.iterdir())[-1]
    good = last.read_bytes()
    for position in range(0, len(good), 37):
        last.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        log = EntryLog(tmp_path, RUN, GENESIS)
        assert log.height == 1, position
        assert log.cut_tail
        last.write_bytes(good)


def test_leftover_of_a_crashed_append_is_removed(tmp_path: Path) -> None:
    new_log(tmp_path, 2)
    (tmp_path / "000000000002.entry.tmp").write_bytes(b"half")
    log = EntryLog(tmp_path, RUN, GENESIS)
    assert log.height == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_damage_in_the_middle_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    new_log(tmp_path, 3)
    middle = sorted(tmp_path.iterdir())[1]
    good = middle.read_bytes()
    middle.write_bytes(good[:50] + b"\xff" + good[51:])
    with pytest.raises(StoreError, match=r"entry 1 of 3.*000000000001.*restore that file"):
        EntryLog(tmp_path, RUN, GENESIS)
    middle.unlink()
    with pytest.raises(StoreError, match=r"entry 1 of 3.*missing"):
        EntryLog(tmp_path, RUN, GENESIS)
    middle.write_bytes(good)
    assert EntryLog(tmp_path, RUN, GENESIS).height == 3


def test_verify_finds_a_damaged_payload_in_the_middle(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    place = log.payload(1)
    with Path(place.path).open("r+b") as file:
        file.seek(place.offset + LENGTHS[0] + 3)
        file.write(b"\0\0\0")
    assert EntryLog(tmp_path, RUN, GENESIS).height == 3
    problems = log.verify()
    assert len(problems) == 1
    assert "segment 1" in problems[0]


def test_result_of_a_segment_is_what_was_voted_for_or_an_error(tmp_path: Path) -> None:
    log = new_log(tmp_path, 3)
    first = LENGTHS[0]
    assert log.result(1, 0) == payload_of(1)[:first]
    assert log.result(1, 2) == payload_of(1)[-LENGTHS[2] :]
    place = log.payload(1)
    with Path(place.path).open("r+b") as file:
        file.seek(place.offset + first + 3)
        file.write(b"\0\0\0")
    assert log.result(1, 0) == payload_of(1)[:first]
    with pytest.raises(StoreError, match="segment 1 of the payload of entry 1 is damaged"):
        log.result(1, 1)
    log.drop_payloads(before=1)
    with pytest.raises(StoreError, match="payload of entry 0 was dropped by retention"):
        log.result(0, 0)


def test_foreign_or_unlinked_entries_are_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path, 2)
    before = snapshot_of(tmp_path)
    with payload_file(2) as source:
        with pytest.raises(StoreError, match="continues"):
            log.append(signed(2, GENESIS), source)
        with pytest.raises(StoreError, match="cannot be number 2"):
            log.append(signed(3, log.head), source)
        with pytest.raises(StoreError, match="names 3 result segments, the payload has 2"):
            log.append(signed(2, log.head), PayloadSource(source.fd, 0, LENGTHS[:2]))
        with pytest.raises(StoreError, match="segment 0 does not have the hash"):
            log.append(signed(2, log.head), PayloadSource(source.fd, 1, LENGTHS))
        with pytest.raises(StoreError, match="ends inside result segment 2"):
            log.append(signed(2, log.head, (*LENGTHS[:2], 9999)), PayloadSource(source.fd, 0, (*LENGTHS[:2], 9999)))
    assert snapshot_of(tmp_path) == before
    assert log.height == 2
    with pytest.raises(ConfigError, match="was changed, and the description of a run is fixed; undo"):
        EntryLog(tmp_path, RunId("other"), GENESIS)
    with pytest.raises(StoreError, match="continues"):
        EntryLog(tmp_path, RUN, Digest(bytes(32)))


def test_roll_back_and_take_another_branch(tmp_path: Path) -> None:
    log = new_log(tmp_path, 5)
    fork_point = log.hash_at(2)
    log.roll_back(2)
    assert (log.height, log.head) == (2, fork_point)
    other = signed(2, log.head, salt=b"other branch")
    with payload_file(2) as source:
        log.append(other, source)
    again = EntryLog(tmp_path, RUN, GENESIS)
    assert again.height == 3
    assert again.entry(2) == other
    with pytest.raises(StoreError, match="roll back"):
        log.roll_back(4)


def test_retention_drops_payloads_and_keeps_the_chain(tmp_path: Path) -> None:
    log = new_log(tmp_path, 4)
    assert log.drop_payloads(before=3) == 3 * sum(LENGTHS)
    assert log.drop_payloads(before=3) == 0
    again = EntryLog(tmp_path, RUN, GENESIS)
    assert again.height == 4
    assert [again.has_payload(index) for index in range(4)] == [False, False, False, True]
    assert again.verify() == []
    with pytest.raises(StoreError, match="dropped by retention"):
        again.payload(1)
    append(again, 1)
    assert EntryLog(tmp_path, RUN, GENESIS).height == 5


def test_dropped_payload_is_restored_whole_or_not_at_all(tmp_path: Path) -> None:
    log = new_log(tmp_path, 4)
    log.drop_payloads(before=3)
    before = snapshot_of(tmp_path)
    with payload_file(2) as wrong, pytest.raises(StoreError, match="does not have the hash"):
        log.restore_payload(1, wrong)
    assert snapshot_of(tmp_path) == before
    with payload_file(1) as source:
        log.restore_payload(1, source)
    again = EntryLog(tmp_path, RUN, GENESIS)
    assert [again.has_payload(index) for index in range(4)] == [False, True, False, True]
    assert (again.verify(), again.head) == ([], log.head)
    assert log.drop_payloads(before=3) == sum(LENGTHS), "retention looks there again"


def test_reading_outside_the_log_is_an_error(tmp_path: Path) -> None:
    log = new_log(tmp_path, 1)
    with pytest.raises(StoreError, match="entry 1 is not in the log"):
        log.entry(1)


def run_child(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    preamble = (
        "import os, sys, resource, signal\nfrom pathlib import Path\n"
        "from dilocoxd.store.durable import DiskFull\nfrom tests.unit.store.chains import *\n"
    )
    command = [sys.executable, "-c", preamble + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """The limit on file size makes the write fail in the middle of the record, as a full disk does."""
    new_log(tmp_path, 2)
    before = snapshot_of(tmp_path)
    done = run_child(
        """
log = new_log(Path(sys.argv[1]))
for limit in (10, 300, 2000, 6000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    source_fd = os.open(sys.argv[2], os.O_RDONLY)
    try:
        log.append(signed(2, log.head), PayloadSource(source_fd, 0, LENGTHS))
    except DiskFull as error:
        assert "free space" in str(error), error
    else:
        raise AssertionError(limit)
    assert log.height == 2
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert len(list(Path(sys.argv[1]).iterdir())) == 2
append(log, 1)
""",
        str(tmp_path),
        str(write_payload(tmp_path.parent / "payload", 2)),
    )
    assert done.returncode == 0, done.stderr
    after = snapshot_of(tmp_path)
    assert {name: after[name] for name in before} == before
    assert EntryLog(tmp_path, RUN, GENESIS).height == 3


def write_payload(path: Path, index: int) -> Path:
    path.write_bytes(payload_of(index))
    return path


@pytest.mark.parametrize("call", ["os.fsync", "os.replace", "fsync_directory"])
def test_crash_around_the_rename_leaves_whole_entries_only(tmp_path: Path, call: str) -> None:
    """SIGKILL at each of the steps that make an append durable."""
    new_log(tmp_path, 2)
    done = run_child(
        """
import pathlib
from dilocoxd.store import log as log_module
log = new_log(Path(sys.argv[1]))
def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "os.fsync":
    os.fsync = die
elif sys.argv[2] == "os.replace":
    pathlib.Path.replace = die
else:
    log_module.fsync_directory = die
append(log, 1)
""",
        str(tmp_path),
        call,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    log = EntryLog(tmp_path, RUN, GENESIS)
    assert log.height == (3 if call == "fsync_directory" else 2)
    assert log.cut_tail == ""
    append(log, 4 - log.height)
    assert EntryLog(tmp_path, RUN, GENESIS).verify() == []
