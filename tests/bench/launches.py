"""Twenty launches in a row with everything real, trainers included: `python -m tests.bench.launches [NUMBER] [STEP_S]`.

Each is a fresh site that joins by the founder's address with the real command, takes part in a round and leaves.
Prints the time until each stage. Any launch that does not get there ends the run with an error. STEP_S: shortest inner
step of all, so that the founder, which has a machine of its own elsewhere, leaves both cores to who joins.
"""

import sys
import tempfile
from pathlib import Path

from tests.bench import end_when_told
from tests.harness.paced.sitecustomize import STEP_VARIABLE
from tests.harness.running.launches import REAL, STAGES, launch, table
from tests.harness.running.run_directories import found_run
from tests.harness.running.sites import ROOT, sites
from tests.harness.running.training import PATIENCE_S, founder_options, site_options

LAUNCHES = 20


def main(number: int, step_s: str = "") -> None:
    """Run and print."""
    with tempfile.TemporaryDirectory(prefix="launches-") as name:
        folder = Path(name)
        founder = found_run(folder, "a", *founder_options(folder, inner_steps=50))
        if step_s:
            paced = f"{ROOT}/tests/harness/paced:{ROOT}"
            founder.environment |= {"PYTHONPATH": paced, STEP_VARIABLE: step_s}
        with sites(founder):
            founder.start()
            founder.wait_height(1, PATIENCE_S)
            done = []
            for index in range(number):
                done.append(launch(founder, folder, index, REAL, *site_options(folder)))
                line = ", ".join(f"{stage} {done[-1].times[stage]:.1f}" for stage in STAGES)
                print(f"{index + 1}/{number}: {line}", flush=True)
            print(table(done))
            if founder.stop() != 0:
                raise SystemExit("the founder did not leave cleanly")


if __name__ == "__main__":
    end_when_told()
    main(int(sys.argv[1]) if len(sys.argv) > 1 else LAUNCHES, *sys.argv[2:])
