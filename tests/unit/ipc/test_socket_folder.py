"""Sockets get a folder whose name leaves room for theirs, whatever TMPDIR is."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from dilocoxd.daemon.site.launch import socket_place
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.socket_folder import PREFIX, SOCKET_PATH_BYTES_MAX, short_parent

NAME_BYTES = 26


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    path.unlink()


def folder_of(length: int, base: Path) -> Path:
    folder = base / ("x" * (length - len(os.fsencode(base)) - 1))
    folder.mkdir()
    return folder


def test_the_kernel_takes_what_is_called_the_longest_name() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        bound(folder_of(SOCKET_PATH_BYTES_MAX - 5, Path(base)) / "sock")
        with pytest.raises(OSError, match="too long"):
            bound(folder_of(SOCKET_PATH_BYTES_MAX - 4, Path(base)) / "sock")


def test_the_users_folder_is_taken_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    room = SOCKET_PATH_BYTES_MAX - NAME_BYTES - 1 - len(PREFIX) - 8 - 1
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        fits, too_long = folder_of(room, Path(base)), folder_of(room + 1, Path(base))
        monkeypatch.setattr(tempfile, "tempdir", str(fits))
        assert short_parent(NAME_BYTES) == fits
        bound(Path(tempfile.mkdtemp(prefix=PREFIX, dir=fits)) / ("s" * NAME_BYTES))
        monkeypatch.setattr(tempfile, "tempdir", str(too_long))
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        assert short_parent(NAME_BYTES) == Path("/tmp"), "the other one goes when its user logs out"
        monkeypatch.setattr(os, "access", lambda folder, mode: folder == Path(base))
        assert short_parent(NAME_BYTES) == Path(base)


def test_where_nothing_fits_the_user_is_told_what_to_set() -> None:
    with pytest.raises(ConfigError, match="set TMPDIR to a folder of at most 1 bytes"):
        short_parent(SOCKET_PATH_BYTES_MAX - 20)


def test_workers_of_a_run_with_a_long_name_meet_in_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        long = folder_of(SOCKET_PATH_BYTES_MAX, Path(base))
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        path, private = socket_place(long)
        assert private is not None
        bound(path)
        private.rmdir()
