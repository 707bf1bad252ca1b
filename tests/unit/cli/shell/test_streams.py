"""What the system refuses to a command is one sentence and no traceback: paths, closed streams, a full disk."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dilocoxd.cli.main import main
from tests.remedies.refused.rooms.told import says

LONG = "x" * 300
"""Longer than any file system allows a name to be."""
HANG_S = 900.0


UNPRIVILEGED = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""root may read what nobody may."""


def typed(
    *arguments: str, before: Callable[[], object] | None = None, stdout: str = ""
) -> "subprocess.CompletedProcess[bytes]":
    """`dilocoxd ARGUMENTS` in a process of its own, as the console script runs it."""
    command = [sys.executable, "-m", "dilocoxd", *arguments]
    with Path(stdout or os.devnull).open("wb") as out:
        return subprocess.run(
            command, preexec_fn=before, stdout=out, stderr=subprocess.PIPE, timeout=HANG_S, check=False
        )


@pytest.mark.parametrize("command", [
    "run", "status", "logs", "log show", "log verify", "config show", "doctor", "invite", "id", "generate", "members",
])  # fmt: skip
def test_path_that_cannot_be_looked_at_is_one_sentence(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dilocoxd", *command.split(), LONG])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 78, said
    assert said.count("\n") == 1
    assert "File name too long" in said
    assert said.endswith("check the path, its owner and its permissions\n")


def test_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    ended = typed("check-config", "--explain", stdout="/dev/full")
    assert ended.returncode == 1
    said = ended.stderr.decode()
    assert said.startswith("dilocoxd: the output cannot be written (No space left on device); free space ")
    assert said.count("\n") == 1
    says("errors.py", "free space where it goes, or send it elsewhere", said)
    assert typed("check-config", "--explain", stdout=str(tmp_path / "elsewhere")).returncode == 0


def test_closed_streams_are_no_reason_to_fail(tmp_path: Path) -> None:
    where = str(tmp_path / "run")
    assert typed("init", "tiny", "--dir", where, "--host", "127.0.0.1", "--port", "0").returncode == 0
    for command in ("config show", "id"):
        ended = typed(*command.split(), where, before=partial(os.closerange, 0, 2))
        assert ended.returncode == 0, ended.stderr.decode()
    assert typed("id", str(tmp_path / "nowhere"), before=partial(os.closerange, 1, 3)).returncode == 78


def test_exit_code_is_that_of_the_trouble_also_where_it_cannot_be_told(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = typed("id", str(tmp_path / "nowhere"), before=lambda: os.dup2(full.fileno(), 2))
    assert ended.returncode == 78


@pytest.mark.parametrize("folder", ["log", "snapshots", "logs"])
def test_folder_that_may_not_be_read_is_not_taken_for_an_empty_one(folder: str, tmp_path: Path) -> None:
    """A site whose log belonged to another user began at round 0, until its first entry could not be written."""
    where = tmp_path / "run"
    options = ("--host", "127.0.0.1", "--port", "0", "--api-port", "0")
    assert typed("init", "tiny", "--dir", str(where), *options).returncode == 0
    (where / folder).chmod(0)
    command = [*UNPRIVILEGED, sys.executable, "-m", "dilocoxd", "run", str(where)]
    ended = subprocess.run(command, capture_output=True, timeout=HANG_S, check=False)
    (where / folder).chmod(0o700)
    assert ended.returncode == 78
    assert ended.stdout == b""
    said = ended.stderr.decode()
    assert said.startswith(f"dilocoxd: {where / folder}: may not be read and written by this user; run the daemon as ")
    assert not list((where / "logs").iterdir())


def test_name_of_another_system_is_one_sentence(tmp_path: Path) -> None:
    """`init` took it, and the daemon ended in a traceback after ten seconds: it tells its parts where they work."""
    where = tmp_path / os.fsdecode(b"gr\xf6\xdfe")
    made = typed("init", "tiny", "--dir", str(where), "--host", "127.0.0.1", "--port", "0")
    assert made.returncode == 78 and not where.exists()
    assert made.stderr.count(b"\n") == 1 and b"gr\\udcf6\\udcdfe': this name is not written in UTF-8" in made.stderr


def test_folder_that_was_removed_under_us_is_one_sentence(tmp_path: Path) -> None:
    """It was taken for an output that cannot be written."""

    def lose_it() -> None:
        os.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()

    (tmp_path / "gone").mkdir()
    ended = typed("id", ".", before=lose_it)
    assert ended.returncode == 78
    assert ended.stderr == b"dilocoxd: the folder where we are was removed; change into one that is there\n"
    says("errors.py", "change into one that is there", ended.stderr.decode())
    assert typed("files", before=partial(os.chdir, tmp_path)).returncode == 0
