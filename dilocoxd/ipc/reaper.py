"""Outlives a killed daemon by a moment and takes its processes along: ``python -m dilocoxd.ipc.reaper MARK``.

Waits for the end of file on its standard input, whose other end only the daemon holds; then kills every process marked
with MARK (ipc/process_tree.py). The last of three lines: workers also leave when their socket ends, and when the kernel
tells them that their parent died.
"""

import os
import signal
import sys

from dilocoxd.ipc.process_tree import kill_tree

KILL_TIMEOUT_S = 8.0


def main(mark: str) -> None:
    """Block until the daemon is gone, then kill what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a shutdown of the daemon is told by the pipe alone
    while os.read(0, 4096):
        pass
    kill_tree(mark, timeout_s=KILL_TIMEOUT_S)


if __name__ == "__main__":
    main(sys.argv[1])
