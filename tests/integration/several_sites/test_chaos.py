"""The short form of the soak: three minutes of kills, frosts, cuts and wiped disks on four real sites (tests/chaos)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.running.sites import ROOT

MINUTES, SEED = 3, 2
STEPS = ("--set", "strategy.inner_steps=16", "--set", "strategy.extend_steps_max=8")
"""Phases of four seconds; the loss, which wants more steps, is not compared here."""

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_soak_of_three_minutes_keeps_every_promise(tmp_path: Path) -> None:
    options = ["--minutes", str(MINUTES), "--seed", str(SEED), "--no-reference", *STEPS, "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert sum(report["faults"].values()) > 15
    assert report["rounds"] > 10
    assert report["loss_excess"].startswith("not compared")
