"""Finds and kills every process of a tree by a mark in its environment, wherever it sits.

Process groups are not enough: each worker has a session of its own, and orphans change their parent. An environment
variable set at the root is inherited by all of them and cannot be lost by accident.
"""

import os
import signal
import time
from pathlib import Path

TREE_VARIABLE = "DILOCOXD_TREE"
"""`<daemon mark>` in the daemon and p2pd, `<daemon mark>/<role>-<generation>` in the processes of one worker."""
_PROC = Path("/proc")
_SCAN_INTERVAL_S = 0.05


def _starts_with_mark(pid: int, mark: bytes) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False  # gone meanwhile, or somebody else's
    prefix = TREE_VARIABLE.encode() + b"="
    for item in environment.split(b"\0"):
        if item.startswith(prefix):
            value = item[len(prefix) :]
            return value == mark or value.startswith(mark + b"/")
    return False


def find_tree(mark: str) -> list[int]:
    """Pids of living processes marked with `mark`, or with something below it, except the caller."""
    encoded = mark.encode()
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            pid = int(entry.name)
            if _starts_with_mark(pid, encoded):
                found.append(pid)
    return found


def kill_tree(mark: str, *, timeout_s: float = 5.0) -> list[int]:
    """SIGKILL all processes of `mark`, also those that appear meanwhile; the pids killed. Blocks until none is left.

    A zombie has no environment any more and does not count. Returns after `timeout_s` at the latest.
    """
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while True:
        living = find_tree(mark)
        if not living or time.monotonic() > deadline:
            return sorted(killed)
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            except OSError:
                continue  # gone meanwhile
        time.sleep(_SCAN_INTERVAL_S)


def is_descendant(pid: int, ancestor: int) -> bool:
    """True if `pid` is `ancestor` or a process below it."""
    for _ in range(64):
        if pid == ancestor:
            return True
        try:
            stat = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid == 0:
            return False  # above the first process, which in a container is the daemon itself
    return False
