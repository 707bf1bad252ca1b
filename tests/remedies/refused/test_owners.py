"""Folders and files that belong to somebody else: what a refusal says about owners is done, and works."""

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import pytest

from dilocoxd.cli.model.tokenizer import hashes_of
from dilocoxd.store.rundir import open_run_dir
from tests.remedies.refused.elsewhere import refused
from tests.remedies.refused.rows import INIT
from tests.remedies.test_findings import invoke

VERSION: Final = 0x20080522
T = TypeVar("T")


def drop() -> None:
    """The right of root to what nobody may, of this thread alone and for good."""
    header, nothing = (ctypes.c_uint32 * 2)(VERSION, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None, use_errno=True).capset(header, nothing) == 0


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    invoke(*f"{INIT} run --api-port 0".split())
    yield tmp_path / "run"
    subprocess.run(["chmod", "-R", "u+rwX", "."], check=True)  # or nobody can remove it


def as_anybody(call: Callable[..., T], *arguments: str | Path) -> T:
    with ThreadPoolExecutor(1, initializer=drop) as other:
        return other.submit(call, *arguments).result()


def test_run_directory_of_another_user(run: Path) -> None:
    (run / "site").chmod(0o500)
    with refused("store/rundir.py", "or give all of it to this one with `chown -R`"):
        as_anybody(open_run_dir(run).require_usable)
    (run / "site").chmod(0o700)  # to its new owner it looks so after `chown -R`
    as_anybody(open_run_dir(run).require_usable)


def lock(path: Path) -> None:
    with open_run_dir(path).locked():
        pass


def test_lock_that_cannot_be_opened(run: Path) -> None:
    (run / "lock").unlink()
    run.chmod(0o500)
    with refused("store/rundir.py", "check the folder's owner"):
        as_anybody(lock, run)
    run.chmod(0o700)
    as_anybody(lock, run)


def test_what_a_killed_start_left_to_another_user(run: Path) -> None:
    left = Path("cut/tokenizer")
    left.mkdir(parents=True)
    (left / "tokenizer.json").touch()
    Path("cut/site.toml").touch()
    left.chmod(0o500)
    with refused("store/rundir.py", "give --dir a new folder"):
        as_anybody(invoke, *INIT.split(), "cut", "--api-port", "0")
    as_anybody(invoke, *INIT.split(), "new", "--api-port", "0")


def test_old_identity_that_cannot_be_kept(run: Path) -> None:
    run.chmod(0o500)
    with refused("cli/run_dir/identity.py", "check disk and owner"):
        as_anybody(invoke, "identity", "new", "run")
    run.chmod(0o700)
    as_anybody(invoke, "identity", "new", "run")


def test_tokenizer_of_another_user(run: Path) -> None:
    for name in ("theirs", "mine"):
        Path(name).mkdir()
        Path(name, "tokenizer.json").write_text("{}")
    Path("theirs/tokenizer.json").chmod(0)
    with refused("cli/model/tokenizer.py", "give a readable folder"):
        as_anybody(hashes_of, Path("theirs"))
    assert as_anybody(hashes_of, Path("mine"))
