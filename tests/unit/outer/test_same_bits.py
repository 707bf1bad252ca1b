"""The shared path gives the same bits in processes with other thread counts and vector widths (issue 4, shown 1)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
WIDTHS = ("default", "avx2", "avx512")
HERE = torch.backends.cpu.get_cpu_capability().lower()
"""The widest that this CPU has. torch takes a named one at its word, and without it dies at its first kernel."""
KNOWN = WIDTHS[: WIDTHS.index(HERE) + 1] if HERE in WIDTHS else WIDTHS[:1]
SETTINGS = [*((str(1 + number // 2), width) for number, width in enumerate(KNOWN)), ("2", "default")]


@pytest.fixture(scope="module")
def digests() -> dict[tuple[str, str], str]:
    found = {}
    for threads, width in SETTINGS:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "ATEN_CPU_CAPABILITY": width,
            "OMP_WAIT_POLICY": "passive",
        }
        command = [sys.executable, "-m", "tests.unit.outer.bits_probe"]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        found[threads, width] = done.stdout
    return found


@pytest.mark.slow
def test_payloads_decoded_values_and_outer_steps_agree(digests: dict[tuple[str, str], str]) -> None:
    reference = digests["1", "default"]
    assert len(reference.splitlines()) >= 16
    for setting, text in digests.items():
        differing = set(text.splitlines()) ^ set(reference.splitlines())
        assert not differing, (setting, sorted(differing))
