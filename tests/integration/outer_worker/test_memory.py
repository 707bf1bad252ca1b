"""Memory of the outer worker: bounded by the parameters, flat over many rounds (see tests/bench/outer_memory.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dilocoxd.outerworker.plan import make_plan
from tests.bench.outer_memory import Bench, bench_manifest, report
from tests.harness.outer_worker.daemon_end import OuterDaemon
from tests.harness.outer_worker.forks import Forks

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1800)]

GROWTH_MIB_MAX = {"tiny": 6.0, "10m": 12.0}
"""Median of the last third of the rounds less that of the first: what the allocator keeps or gives back from one round
to the next is up to two segments. One leaked segment a round would be 25 times as much for tiny, 43 MiB for 10m."""
SHARED_X_MAX = 5.1
"""Three sites: anchor, momentum, phase, feedback, a third of owner feedback, an int4 result and UNDO; and of LEFT_OUT a
third, after the entries that the lot falls on."""
PRIVATE_MIB_MAX = 260.0
"""Interpreter and torch take 150; the rest is scratch of one segment. Independent of the model."""


@pytest.mark.parametrize(("model", "rounds"), [("tiny", 200), ("10m", 16)])
def test_memory_is_bounded_and_flat(tmp_path: Path, forks: Forks, model: str, rounds: int) -> None:
    manifest = bench_manifest(model, "int4", 65536 if model == "tiny" else 1 << 20)
    plan = make_plan(manifest)
    with OuterDaemon(tmp_path / "site", manifest, forks.outer) as worker:
        worker.start()
        found = report(plan, Bench(worker, plan, 3).run(rounds, tmp_path))
    assert found["private_growth_mib"] < GROWTH_MIB_MAX[model], found
    assert found["private_mib"] < PRIVATE_MIB_MAX, found
    if model != "tiny":
        assert found["shared_x"] < SHARED_X_MAX, found
