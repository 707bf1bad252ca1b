"""`make demo` ended by a signal: its sites, which have sessions of their own, end with it."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.harness.running.sites import GONE_S, ROOT, wait_until
from tests.harness.running.training import PATIENCE_S

pytestmark = pytest.mark.processes
PARTS = ("p2pd", "dilocoxd")


def with_parts(demo: subprocess.Popen[str], folder: Path) -> list[psutil.Process]:
    """All that it started, once a daemon with its p2pd is among them."""
    assert demo.poll() is None, said_by_sites(folder)
    tree = psutil.Process(demo.pid).children(recursive=True)
    commands = []
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            commands.append(" ".join(one.cmdline()))
    return tree if all(any(part in command for command in commands) for part in PARTS) else []


def said_by_sites(folder: Path) -> str:
    """What a failed wait shows."""
    return "\n".join(log.read_text(errors="replace")[-2000:] for log in folder.glob("*/*/*.out"))


def test_demo_whose_terminal_is_closed_leaves_no_site(tmp_path: Path) -> None:
    heard = ["env", "--default-signal=HUP"]  # tests under nohup would hand its deafness on
    command = [
        *heard,
        sys.executable,
        "-m",
        "tests.demo",
        "--sites",
        "1",
        "--no-faults",
        "--out",
        str(tmp_path / "out"),
    ]
    environment = {**os.environ, "TMPDIR": tempfile.mkdtemp(dir=tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        tree: list[psutil.Process] = []
        try:
            tree = wait_until(
                lambda: with_parts(demo, tmp_path), "a site that runs", PATIENCE_S, lambda: said_by_sites(tmp_path)
            )
            demo.send_signal(signal.SIGHUP)
            said, _ = demo.communicate(timeout=PATIENCE_S)
            assert demo.returncode == 128 + signal.SIGHUP
            assert said.splitlines()[-1].startswith("ended by SIGHUP: no site runs any more")
            _, alive = psutil.wait_procs(tree, timeout=GONE_S)
            assert not alive
        finally:
            for one in [psutil.Process(demo.pid), *tree] if demo.poll() is None else tree:
                if one.is_running():
                    one.kill()
