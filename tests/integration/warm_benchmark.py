"""What a forked benchmark does in test_benchmarks.py: becomes `python -m tests.bench.NAME ...`, which its order names.

The process that forks its daemons is a second fork, so that neither of them imports what is loaded already.
"""

import json
import os
from typing import Final

from tests.harness.outer_worker.spare import Spare
from tests.harness.running.warm import ORDER_VARIABLE, keep_launch
from tests.harness.running.warm_daemon import be_command

FOUND_VARIABLE: Final = "DILOCOXD_TESTS_FOUND"
"""Number of the descriptor that is its standard output."""


def main() -> int:
    """Exit status of the benchmark."""
    found = int(os.environ[FOUND_VARIABLE])
    os.dup2(found, 1)
    os.close(found)
    with os.fdopen(int(os.environ[ORDER_VARIABLE])) as file:
        order = json.load(file)
    keep_launch(Spare().launch)
    return be_command(order, is_daemon=False)
