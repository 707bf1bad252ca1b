"""What the product's workers inherit from the fork server: modules, and nothing that does not survive a fork."""

import json
from pathlib import Path

import pytest

from dilocoxd.daemon.settings import FAMILY_MODULES
from tests.harness.outer_worker.forks import OUTER, TRAINER, Forks

pytestmark = pytest.mark.processes
IMPORTS_MAX = 50
"""Modules of one family. All of the library's models share some 1,500 more, which take three seconds."""
PROBE = "tests.harness.outer_worker.fork_probe"


def test_loaded_workers_leave_one_thread_no_device_and_free_choice_of_threads(tmp_path: Path) -> None:
    with Forks(OUTER, TRAINER, *FAMILY_MODULES, PROBE) as forks:
        assert forks.num_threads == 1, "a fork takes one thread along; what the others held would stay locked"
        with (tmp_path / "out").open("wb") as out:
            assert forks.start(PROBE, {"PROBE": "look"}, output=out.fileno()).wait() == 0
    found = json.loads((tmp_path / "out").read_text())
    assert found["torch"] == {"is_cuda_open": False, "num_threads": 2}
    assert found["descriptors"] == [0, 1, 2]
    assert len(found["imports"]) < IMPORTS_MAX, "each worker loads again what the fork server could have loaded once"
