"""The shared path gives the same bits in processes with other thread counts and vector widths (issue 4, shown 1)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = [("1", "default"), ("1", "avx2"), ("2", "avx512"), ("2", "default")]
"""torch takes the widest kernels the CPU has up to the named one, so the list is safe on every machine."""


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
