"""Memory of two whole sites: daemon and p2pd bounded, outer worker a multiple of its state, both flat over rounds.

Short form of tests/bench/memory.py: a state of 10 million parameters, 20 rounds.
"""

from pathlib import Path

import pytest

from tests.bench.memory import manifest_options, measure

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1000)]

ROUNDS = 20
INNER_STEPS, STEP_S = 2, 0.5
"""Phases of a second. On a busy machine an update takes thirty, and the daemons are told of each step meanwhile: of ten
a second half of what both sites used was that."""
LIMIT_S = 900.0
"""Against hangs alone: 400 s were too few at a load of 20."""
DAEMON_AND_P2PD_MIB_MAX = 450.0 * 1e6 / (1 << 20)
OUTER_X_MAX = 5.0
SCRATCH_MIB = 60.0
"""Of one segment, and what the allocator keeps; the same for every model."""
DAEMON_GROWTH_MIB_MAX = 12.0
"""From the second third of the rounds to the last: one payload a round that is not freed would be 35 MiB."""
OUTER_GROWTH_MIB_MAX = 24.0


def test_memory_of_whole_sites_is_bounded(tmp_path: Path) -> None:
    options = manifest_options("10m", snapshot_every=4, delay="arrival", segment_elements_max=1 << 18)
    options += ["--set", f"strategy.inner_steps={INNER_STEPS}"]
    for found in measure(tmp_path, options, rounds=ROUNDS, limit_s=LIMIT_S, step_s=STEP_S):
        assert found["rounds"] >= ROUNDS, found
        assert found["joint_rounds"] >= ROUNDS // 2, found
        assert found["daemon_and_p2pd_mib"] < DAEMON_AND_P2PD_MIB_MAX, found
        allowed_x = OUTER_X_MAX + SCRATCH_MIB / found["parameter_mib"]
        assert found["outer_less_baseline_x"] < allowed_x, found
        assert found["growth_mib"]["daemon"] < DAEMON_GROWTH_MIB_MAX, found
        assert found["growth_mib"]["p2pd"] < DAEMON_GROWTH_MIB_MAX, found
        assert found["growth_mib"]["outer_private"] < OUTER_GROWTH_MIB_MAX, found
