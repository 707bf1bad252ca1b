"""Process of the outer worker: `main`, called in a process that the fork server forked (docs/internals.md section 4).

Decides nothing: says what buffers it needs, gets them, and answers requests until Stop (exit 0) or until the daemon is
gone (exit 1 at once). Environment: DILOCOXD_SOCKET, DILOCOXD_GENERATION, DILOCOXD_RUN_DIR; DILOCOXD_OUTER_PART
(`0/3`) for one of several parts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from dilocoxd.config.manifest import load_manifest
from dilocoxd.config.site import SiteConfig, WorkersSection, load_site
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.client import GENERATION_VARIABLE, PART_VARIABLE, RUN_DIRECTORY_VARIABLE, DaemonConnection, DaemonGone
from dilocoxd.outer.on_gpu import device_of_part
from dilocoxd.outerworker.buffers import MappedBuffers
from dilocoxd.outerworker.plan import OuterPlan, make_plan
from dilocoxd.outerworker.progress import Reporter
from dilocoxd.outerworker.requests import Worker
from dilocoxd.wire.local.worker import Attach, Stop, WorkerHello
from dilocoxd.wire.placement import WHOLE, OuterPart

_EXIT_DAEMON_GONE = 1


def main() -> int:
    """Serve one daemon; returns the exit code."""
    try:
        run_directory = Path(os.environ[RUN_DIRECTORY_VARIABLE])
        path = run_directory / "site.toml"
        workers = (load_site(path) if path.exists() else SiteConfig()).workers
        part = OuterPart.parse(os.environ.get(PART_VARIABLE, str(WHOLE)))
        manifest, device = load_manifest(run_directory / "run.toml"), device_of_part(workers.encode_device, part.index)
        plan = make_plan(manifest, part, device)
        yield_to_training(workers)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    try:
        connection = DaemonConnection()
        serve(connection, plan)
    except (DaemonGone, ConnectionError, FileNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        # A snapshot thread may be waiting for a slow disk: nobody needs it any more.
        os._exit(_EXIT_DAEMON_GONE)
    return 0


def serve(connection: DaemonConnection, plan: OuterPlan) -> None:
    """Introduce ourselves and answer requests until Stop. Raises DaemonGone."""
    report = Reporter(connection)
    part, generation = plan.part, int(os.environ.get(GENERATION_VARIABLE, "0"))
    report.send(WorkerHello("outer", os.getpid(), generation, part.index, part.num_parts))
    report.send(plan.described())
    worker: Worker | None = None
    while True:
        message = connection.receive()
        if isinstance(message, Attach):
            if worker is None and {b.name for b in plan.described().buffers} <= set(connection.buffers):
                buffers = MappedBuffers(plan, connection.buffers, connection.descriptors)
                worker = Worker(plan, buffers, report)
        elif isinstance(message, Stop):
            if worker is not None:
                worker.finish()
            return
        elif worker is None:
            raise AssertionError(f"{type(message).__name__} came before the shared buffers were attached")
        else:
            worker.handle(message)


def yield_to_training(workers: WorkersSection) -> None:
    """Niceness and thread count of site.toml."""
    torch.set_num_threads(workers.outer_threads)
    os.nice(workers.outer_nice)
