"""A rank for tests/bench/restarts/generations.py: meets the others and tells when, and how much memory that takes."""

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import dilocoxd.trainer.main  # noqa: F401 - what a real rank has loaded
from dilocoxd.trainer.rendezvous import join


def main() -> int:
    """Exit status."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        dist.init_process_group("gloo")
    else:
        join("gloo", os.environ, timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(1))
    found = {"joined": time.time(), "pss_mb": pss_mb(os.getpid()), "above_pss_mb": above_mb()}
    (Path(os.environ["BENCH_OUT"]) / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    return 0


def above_mb() -> float:
    """Share of all that stands between this rank and the bench."""
    total, pid = 0.0, os.getppid()
    while pid != int(os.environ["BENCH_PID"]):
        total += pss_mb(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return total


def pss_mb(pid: int) -> float:
    """Proportional share of a process in physical memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1e3
    raise AssertionError("no Pss in smaps_rollup")


if __name__ == "__main__":
    main()
    os._exit(0)
