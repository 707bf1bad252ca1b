"""`.ci/run` itself, with stages that do next to nothing: what goes wrong between them is not green."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.running.sites import wait_until

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
RUN = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
STAGES = re.findall(r"^ +stage (\S+) ", RUN, re.M)
FAULT = "E   tests.containers.machine_fault.MachineFaultError: docker pause failed 4 times for the machine's sake"
MAKEFILE = ".DEFAULT:\n\t@bash ./stage $@\n.PHONY: docs demo\ndocs demo:\n\t@bash ./stage $@\n"


class Ci:
    """A place with the script, and with a Makefile whose targets all run `stage`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (".ci", "programs", "tmp"):
            (folder / name).mkdir()
        (folder / ".ci" / "run").write_text(RUN)
        (folder / "Makefile").write_text(MAKEFILE)
        (folder / "programs" / "apt-get").write_text("#!/bin/sh\n")  # nothing is installed
        (folder / "programs" / "apt-get").chmod(0o755)

    def start(self, stage: str) -> subprocess.Popen[str]:
        """`stage`: what each of them does in bash; $1 is its target."""
        (self.folder / "stage").write_text(stage)
        own = {"PATH": f"{self.folder / 'programs'}:{os.environ['PATH']}", "TMPDIR": str(self.folder / "tmp")}
        return subprocess.Popen(
            ["bash", ".ci/run"], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, **own, "PYTHON": sys.executable},
        )  # fmt: skip

    def end(self, stage: str) -> tuple[int, str]:
        """Status and output."""
        process = self.start(stage)
        said, _ = process.communicate(timeout=600)
        return process.returncode, said


@pytest.fixture
def ci(tmp_path: Path) -> Iterator[Ci]:
    yield Ci(tmp_path)


def test_green_is_a_run_in_which_every_stage_passed_once(ci: Ci) -> None:
    status, said = ci.end("true")
    assert (status, said.splitlines()[-1]) == (0, "== all passed"), said
    assert sorted(re.findall(r"^([a-z]\S+) .* passed$", said, re.M)) == sorted({*STAGES, "system", "set-up"})


def test_stage_that_nobody_could_begin_is_not_one_that_another_lane_has(ci: Ci) -> None:
    """The marks of what has begun are gone, or cannot be made: on a full disk, or where old files are swept."""
    status, said = ci.end('[ "$1" != docs ] || rm -r "$TMPDIR"/tmp.*/begun')
    assert status == 1, said
    assert "all passed" not in said


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM])
def test_run_that_a_signal_ended_does_not_say_that_all_passed(ci: Ci, number: signal.Signals) -> None:
    os.mkfifo(ci.folder / "never")
    process = ci.start('case $1 in .venv*) ;; *) echo "$1" >>begun; read -r line <never ;; esac')
    begun = ci.folder / "begun"
    wait_until(lambda: begun.exists() and len(begun.read_text().split()) == 3, "a stage of each lane", 300)
    process.send_signal(number)
    said, _ = process.communicate(timeout=600)
    assert process.returncode != 0
    assert "all passed" not in said and "== FAILED" in said, said
    assert len(begun.read_text().split()) == 3, "a lane went on"
    assert not list((ci.folder / "tmp").iterdir())


@pytest.mark.parametrize(
    ("beside", "expected"),
    [("", 75), ("ERROR tests/containers/test_a.py::test_b - AssertionError: the promise", 1)],
)
def test_machines_fault_hides_no_failure_beside_it(ci: Ci, beside: str, expected: int) -> None:
    lines = "\n".join([FAULT, "FAILED tests/containers/test_a.py::test_b - tests.containers.mach...", beside])
    (ci.folder / "lines").write_text(lines)
    status, said = ci.end('[ "$1" != test-containers ] || { cat lines; exit 1; }')
    assert status == expected, said


def test_only_what_has_an_engine_fails_for_the_machines_sake(ci: Ci) -> None:
    (ci.folder / "lines").write_text(FAULT)
    status, said = ci.end('[ "$1" != test-in-process-2 ] || { cat lines; exit 1; }')
    assert status == 1, said
