"""What the product's workers inherit from the fork server: modules, and nothing that does not survive a fork."""

import json
from pathlib import Path

import pytest

from tests.harness.outer_worker.forks import OUTER, TRAINER, Forks

pytestmark = pytest.mark.processes
PROBE = "tests.harness.outer_worker.fork_probe"


def test_loaded_workers_leave_one_thread_no_device_and_free_choice_of_threads(tmp_path: Path) -> None:
    with Forks(OUTER, TRAINER, "dilocoxd.models.hf", PROBE) as forks:
        assert forks.num_threads == 1, "a fork takes one thread along; what the others held would stay locked"
        with (tmp_path / "out").open("wb") as out:
            assert forks.start(PROBE, {"PROBE": "look"}, output=out.fileno()).wait() == 0
    found = json.loads((tmp_path / "out").read_text())
    assert found["torch"] == {"is_cuda_open": False, "num_threads": 2}
    assert found["descriptors"] == [0, 1, 2]
