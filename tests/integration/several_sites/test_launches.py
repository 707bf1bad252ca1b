"""Twenty launches in a row: each a fresh site that joins by the founder's address and takes part in a round."""

import sys
from pathlib import Path

import pytest

from tests.harness.running.launches import SYNTHETIC, launch, table
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import sites
from tests.harness.running.training import PATIENCE_S, founder_options, site_options

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(1800)]
LAUNCHES = 20


def test_twenty_launches_in_a_row_join(tmp_path: Path) -> None:
    """Everything real but the trainers, which have no model; `python -m tests.bench.launches` has those as well."""
    founder = found_run(tmp_path, "a", *founder_options(tmp_path, inner_steps=5))
    founder.environment["SYNTHETIC_STEP_S"] = "0.2"
    with sites(founder):
        founder.start_command([sys.executable, "-m", "tests.harness.synthetic.daemon", str(founder.run_dir)])
        founder.wait_height(1, PATIENCE_S)
        done = [launch(founder, tmp_path, number, SYNTHETIC, *site_options(tmp_path)) for number in range(LAUNCHES)]
        print(table(done))
        assert founder.stop() == 0
