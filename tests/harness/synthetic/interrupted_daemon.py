"""A daemon whose p2pd is ended by a Ctrl-C of its terminal a moment before the daemon hears of that Ctrl-C itself.

p2pd gets a session of its own in its first ten milliseconds: `python -m tests.harness.synthetic.interrupted_daemon
RUN_DIR`.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from unittest import mock

from dilocoxd.daemon.app import run_daemon
from dilocoxd.errors import WorkerError
from dilocoxd.swarm.p2pd.node import Node
from tests.harness.synthetic.fake_site import FakeSite


async def interrupted(_: Node) -> None:
    """In place of Node.start."""
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
    raise WorkerError("p2pd did not start: it ended before it served")


def main(run_dir: Path) -> int:
    """Exit code of the daemon."""
    with mock.patch.object(Node, "start", interrupted):
        return run_daemon(run_dir, make_site=FakeSite)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
