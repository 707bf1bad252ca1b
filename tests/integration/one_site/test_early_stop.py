"""A command is told to end when its run directory is there, and its daemon has no handlers of its own yet."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.running.run_directories import common_options, found_run, free_port, link_of
from tests.harness.running.sites import ROOT, SiteProcess

pytestmark = [pytest.mark.processes, pytest.mark.slow]
HANG_S = 900.0
PROGRAM = """
import signal, sys
from importlib.abc import MetaPathFinder
import dilocoxd.cli.main as program
from dilocoxd.cli import commands
from dilocoxd.cli.joining import join
from dilocoxd.store import rundir

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a script runs in the background ignores it
number, times = getattr(signal, sys.argv.pop(1)), int(sys.argv.pop(1))

def tell(*_args, **_kwargs):
    for _ in range(times):
        signal.raise_signal(number)

def before(place, name, is_it=lambda *_: True):
    real = getattr(place, name)
    def told(*args, **kwargs):
        if is_it(*args):
            tell()
        return real(*args, **kwargs)
    setattr(place, name, told)

class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "dilocoxd.daemon.app":
            tell()

{}
program.main()
"""
"""`dilocoxd` with a signal at the moment that stands for the braces."""
WRITTEN = "before(rundir, 'write_file', lambda path, *_: path.name == 'run.toml')"
ANNOUNCED = "before(commands, 'announce_run')"
IMPORTED = "sys.meta_path.insert(0, Finder())"
DROPPED = "import gc; gc.callbacks.append(lambda phase, _: tell() if 'dilocoxd.daemon.app' in sys.modules else None)"
"""Where Python prints an exception and goes on."""
OPENED = "import dilocoxd.daemon.app as app; before(app, 'EntryLog')"
"""In the daemon's loop."""


def told(folder: Path, moment: str, *command: str, name: str = "SIGINT", times: int = 1) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command that gets the signal at `moment`."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(moment), name, str(times), *command],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=HANG_S,
        check=False,
    )  # fmt: skip
    return process.returncode, process.stdout, process.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> SiteProcess:
    return found_run(tmp_path_factory.mktemp("early"), "a")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("moment", [ANNOUNCED, IMPORTED, DROPPED, OPENED], ids=["said", "imports", "dropped", "loop"])
def test_daemon_that_does_not_hear_yet_ends_with_how_to_go_on(site: SiteProcess, moment: str, name: str) -> None:
    code, said, errors = told(site.run_dir.parent, moment, "run", "a", name=name)
    assert (code, said.splitlines()[-1]) == (0, "stopped; go on with: dilocoxd run a"), errors
    assert "another machine joins with" in said
    assert "Traceback" not in errors and "KeyboardInterrupt" not in errors


@pytest.mark.parametrize("moment", [WRITTEN, IMPORTED], ids=["run.toml", "imports"])
def test_start_ends_as_its_daemon_would(tmp_path: Path, moment: str) -> None:
    options = common_options(tmp_path / "new", free_port())
    code, said, errors = told(tmp_path, moment, "start", "tiny", *options)
    assert (code, said.splitlines()[-1]) == (0, "stopped; go on with: dilocoxd run new"), errors
    assert (tmp_path / "new" / "run.toml").exists()
    assert "Traceback" not in errors


def test_join_ends_as_its_daemon_would(site: SiteProcess) -> None:
    """A link of its own: nobody is asked."""
    join = ("join", link_of(site.run_dir), "--dir", "a")
    code, said, errors = told(site.run_dir.parent, "before(join, 'announce_run')", *join)
    assert (code, said.splitlines()[-1]) == (0, "stopped; go on with: dilocoxd run a"), errors
    code, said, errors = told(site.run_dir.parent, "before(join, 'announce_run')", *join, "--no-run")
    assert code == -signal.SIGINT, "no daemon was to be started: a command as any other"
    assert "stopped" not in said and not errors.strip().endswith("KeyboardInterrupt")


def test_the_second_ctrl_c_means_now(site: SiteProcess) -> None:
    code, said, errors = told(site.run_dir.parent, ANNOUNCED, "run", "a", times=2)
    assert (code, said) == (-signal.SIGINT, ""), errors
    assert "Traceback" not in errors
