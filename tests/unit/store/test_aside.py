"""A branch that is set aside is on disk before the log is cut: the order of the calls that a power loss goes by."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.durable import DiskFull
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import verify
from tests.unit.store.chains import GENESIS, RUN, new_log
from tests.unit.store.test_snapshots import make

NAMING = ("link", "mkdir", "rename", "replace")
Call = tuple[str, Path]


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Calls from now on: what makes a name with the folder that it is made in, fsync and unlink with their object."""
    calls: list[Call] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **rest: Any) -> Any:
            if name == "fsync":
                calls.append((name, Path(f"/proc/self/fd/{args[0]}").readlink()))
            elif rest.get("dir_fd") is None:  # with one it is rmtree, of what nobody needs any more
                target = Path(args[1] if name in ("link", "rename", "replace") else args[0])
                calls.append((name, target.parent))
            return real(*args, **rest)

        monkeypatch.setattr(os, name, call)

    for name in (*NAMING, "fsync", "unlink"):
        watch(name)
    return calls


def test_all_that_is_kept_is_durable_before_the_log_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log(tmp_path / "log", 4)
    snapshot = make(tmp_path / "snapshots", 3, size=100)
    aside = Aside(tmp_path / "aside")
    with monkeypatch.context() as patch:
        calls = recorded(patch)
        aside.keep(log, 2, [snapshot])
        log.roll_back(2)
    cut = calls.index(("unlink", tmp_path / "log"))
    before = calls[:cut]
    named = {folder: index for index, (name, folder) in enumerate(before) if name in NAMING}
    assert {tmp_path, tmp_path / "aside"} <= named.keys() and len(named) == 3
    for folder, last in named.items():
        moved = folder if folder.name != ".3.tmp" else tmp_path / "aside" / ".3.tmp"
        assert ("fsync", moved) in before[last:], f"what was made in {folder.name} may be lost, but the log is cut"
    assert len(aside.entries()) == 2


def test_what_is_forgotten_stays_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, aside = new_log(tmp_path / "log", 3), Aside(tmp_path / "aside")
    aside.keep(log, 1, [make(tmp_path / "snapshots", 2, size=100)])
    with monkeypatch.context() as patch:
        calls = recorded(patch)
        aside.clear()
    assert calls[-1] == ("fsync", tmp_path / "aside")
    assert aside.is_empty() and not list((tmp_path / "aside").iterdir())


def test_folder_of_the_log_is_durable_before_its_first_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        calls = recorded(patch)
        EntryLog(tmp_path / "moved" / "log", RUN, GENESIS)
    assert calls == [
        ("mkdir", tmp_path),
        ("fsync", tmp_path),
        ("mkdir", tmp_path / "moved"),
        ("fsync", tmp_path / "moved"),
    ]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP])
def test_branch_is_copied_where_files_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    log, aside, calls = new_log(tmp_path / "log", 4), Aside(tmp_path / "aside"), recorded(monkeypatch)
    snapshot, head = make(tmp_path / "snapshots", 3, size=100), log.head
    monkeypatch.setattr(os, "link", no_links)
    aside.leave(log, 2, [snapshot])
    assert ("fsync", tmp_path / "aside" / f"{log.path(3).name}.tmp") in calls, "a copy may be lost, but the log is cut"
    assert (log.height, len(aside.entries())) == (2, 2)
    aside.put_back(log, tmp_path / "snapshots")
    assert (log.head, log.verify()) == (head, [])
    assert verify(tmp_path / "snapshots" / "3").total_bytes == 100


def test_copy_that_a_crash_or_a_full_disk_cut_short_is_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, aside = new_log(tmp_path / "log", 3), Aside(tmp_path / "aside")
    with monkeypatch.context() as patch:

        def no_links(*_: object) -> None:
            raise OSError(errno.EPERM, "no links")

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "no space")

        patch.setattr(os, "link", no_links)
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="free space"):
            aside.leave(log, 1, [])
    assert log.height == 3 and not list((tmp_path / "aside").iterdir())
    (tmp_path / "aside" / f"{log.path(2).name}.tmp").write_bytes(b"half")
    assert aside.is_empty() and aside.entries() == []
    aside.leave(log, 1, [])
    assert len(aside.entries()) == 2
    aside.clear()
    assert not list((tmp_path / "aside").iterdir())
