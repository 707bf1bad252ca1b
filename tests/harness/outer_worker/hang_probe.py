"""Ranks that hang: all wait in a collective for rank 1, which is somewhere else.

Each touches READY-<rank> in the run directory from where it hangs. Nothing here speaks with a daemon.
"""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dilocoxd.ipc.client import RUN_DIRECTORY_VARIABLE
from dilocoxd.trainer.flight_recorder import start_recording
from dilocoxd.trainer.rendezvous import join

HANG_S = 600.0
LAGGARD = 1


def main() -> int:
    """Never returns by itself."""
    rank, run_directory = int(os.environ["RANK"]), Path(os.environ[RUN_DIRECTORY_VARIABLE])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    start_recording(run_directory, rank)
    join("gloo", os.environ, timeout=timedelta(seconds=HANG_S))
    dist.all_reduce(torch.ones(4))
    ready = run_directory / f"READY-{rank}"
    if rank == LAGGARD:
        be_elsewhere(ready)
    wait_for_all(dist.all_reduce(torch.ones(3), async_op=True), ready)
    return 0


def be_elsewhere(ready: Path) -> None:
    """What the stacks of rank 1 must show."""
    ready.touch()
    time.sleep(HANG_S)


def wait_for_all(work: Any, ready: Path) -> None:
    """What the stacks of the others must show; `work` is a collective that has begun."""
    ready.touch()
    work.wait()
