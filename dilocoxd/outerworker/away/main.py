"""Process on the head in the place of an outer part that runs on a node: `main`, forked like the part itself would be.

Environment besides that of an outer part (outerworker/main.py): the node's connection and what opens its messages
(ipc/client.py: NODE_*). Exit 1 at once when the daemon, the node or the part is gone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dilocoxd.config.manifest import load_manifest
from dilocoxd.config.site import site_in_force
from dilocoxd.errors import ConfigError, WireError
from dilocoxd.ipc import client
from dilocoxd.ipc.client import LINK_LOST_STATUS, DaemonConnection, DaemonGone
from dilocoxd.ipc.nodes.faults import full_fault, tell_fault
from dilocoxd.ipc.sealed import ANSWER_S, connection_taken_over, status_of_end
from dilocoxd.outerworker.away.relay import NodeGone, Relay, fault_of, hello_of
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.wire.local.node import PartFolder, StartPart
from dilocoxd.wire.placement import OuterPart


def main() -> int:
    """Stand for one part; returns the exit code."""
    try:
        run_directory = Path(os.environ[client.RUN_DIRECTORY_VARIABLE])
        part = OuterPart.parse(os.environ[client.PART_VARIABLE])
        plan = make_plan(load_manifest(run_directory / "run.toml"), part)
        start = _start(run_directory, part)
        sealed = connection_taken_over(os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    relay: Relay | None = None
    try:
        sealed.send(start)
        folder = sealed.receive(ANSWER_S)
        if not isinstance(folder, PartFolder):
            raise NodeGone(getattr(folder, "reason", f"the node said {type(folder).__name__}"), full_fault(folder))
        relay = Relay(DaemonConnection(), sealed, plan, Path(folder.path))
        relay.run()
    except (DaemonGone, NodeGone, EOFError, OSError, WireError) as error:
        fault = fault_of(error)
        sys.stderr.write(f"outer part {part.index}: {fault.detail if fault is not None else error}\n")
        sys.stderr.flush()
        if fault is not None:
            relay.tell(fault) if relay is not None else tell_fault(fault, hello_of(plan))
        os._exit(LINK_LOST_STATUS if fault is not None else status_of_end(error))  # a thread may wait for the node
    return 0


def _start(run_directory: Path, part: OuterPart) -> StartPart:
    return StartPart(
        os.environ[client.NODE_SERVED_VARIABLE],
        os.environ[client.NODE_INCARNATION_VARIABLE],
        bool(os.environ[client.NODE_NEW_VARIABLE]),
        str(part),
        (run_directory / "run.toml").read_bytes(),
        site_in_force(run_directory / "site.toml"),  # the variables of this machine are none of the node's
    )
