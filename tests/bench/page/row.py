"""`python -m tests.bench.page.row MODULE ...`: a benchmark of tests/bench, whose sites and processes end with it.

SIGTERM becomes an exit, so that everything that the benchmark has entered is left; many of them do not see to it.
"""

import runpy
import sys

from tests.bench import end_when_told


def main() -> None:
    end_when_told()
    module = f"tests.bench.{sys.argv[1]}"
    sys.argv = [module, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
