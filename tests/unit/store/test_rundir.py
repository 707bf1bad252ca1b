"""Run directories: creating, opening, one daemon at a time, files that survive a failed write."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.store.durable import write_file, write_json
from dilocoxd.store.rundir import create_run_dir, open_run_dir


def manifest() -> Manifest:
    return manifest_from_tables(preset_tables("tiny"), source="tiny")


def test_created_directory_opens_with_equal_files(tmp_path: Path) -> None:
    created = create_run_dir(tmp_path / "a" / "run", manifest(), SiteConfig())
    opened = open_run_dir(tmp_path / "a" / "run")
    assert opened == created
    assert opened.load() == (manifest(), SiteConfig())
    assert stat.S_IMODE(opened.path.stat().st_mode) == 0o700
    assert opened.trainer_checkpoint.is_dir()
    assert opened.log.is_dir()


def test_second_run_in_one_directory_is_refused(tmp_path: Path) -> None:
    create_run_dir(tmp_path / "run", manifest(), SiteConfig())
    with pytest.raises(ConfigError, match="holds a run already"):
        create_run_dir(tmp_path / "run", manifest(), SiteConfig())


def test_directory_without_a_run_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run directory"):
        open_run_dir(tmp_path)


def test_place_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be created"):
        create_run_dir(tmp_path / "file" / "run", manifest(), SiteConfig())


HOLD = """
import sys
from pathlib import Path
from dilocoxd.store.rundir import open_run_dir
with open_run_dir(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_daemon_is_refused_with_the_holder_until_it_dies(tmp_path: Path) -> None:
    run_dir = create_run_dir(tmp_path / "run", manifest(), SiteConfig())
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run_dir.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=rf"process {holder.pid} holds this directory"), run_dir.locked():
            pass
        holder.kill()
        holder.wait()
    with run_dir.locked():
        assert run_dir.lock_file.read_text() == f"{os.getpid()}\n"


def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "inside").write_text("old")
    with pytest.raises(StoreError, match="writing folder"):
        write_file(target, b"new")  # a file cannot replace a folder that is not empty
    assert (target / "inside").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_full_disk_is_a_store_error_with_the_remedy(tmp_path: Path) -> None:
    """A file size limit stands in for the disk: the kernel refuses the write in the same place."""
    script = (
        "import errno, os, resource, signal, sys\n"
        "from pathlib import Path\n"
        "from dilocoxd.errors import StoreError\n"
        "from dilocoxd.store.durable import write_file\n"
        "path = Path(sys.argv[1])\n"
        "write_file(path, b'old')\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    write_file(path, bytes(5000))\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    path = tmp_path / "state"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert "free space there" in done.stdout
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_replaces_content(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_file(path, b"one")
    write_file(path, b"two")
    assert path.read_bytes() == b"two"
    write_json(tmp_path / "x.json", {"b": 1, "a": 2})
    assert (tmp_path / "x.json").read_text() == '{\n "a": 2,\n "b": 1\n}\n'
