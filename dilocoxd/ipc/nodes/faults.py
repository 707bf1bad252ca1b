"""What a process in the place of a worker on a node tells the daemon of that node: it is mute, or its disk is full."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Final

from dilocoxd.ipc.client import DaemonConnection, DaemonGone
from dilocoxd.ipc.sealed import NodeMute
from dilocoxd.wire.local.node import NODE_FULL, NODE_MUTE, PartEnded
from dilocoxd.wire.local.worker import WorkerFailed, WorkerHello

HEARD_S: Final = 2.0
"""So long the daemon has to hear of it, and to end what speaks for the node, before that ends by itself."""
DETAIL_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class NodeFault:
    """`kind`: of NODE_FAULTS. `detail`: one sentence, with what to do."""

    kind: str
    detail: str

    def message(self) -> WorkerFailed:
        """As the daemon is told it."""
        return WorkerFailed(0, self.kind, self.detail[:DETAIL_MAX])


def mute_fault(error: BaseException) -> NodeFault | None:
    """None: it tells of something else."""
    if not isinstance(error, NodeMute):
        return None
    return NodeFault(
        NODE_MUTE,
        f"its machine answers, but {error}; end `dilocoxd node` there and start it again, or start one on another"
        " machine",
    )


def full_fault(ended: Any) -> NodeFault | None:
    """Of what a node says when nothing can run there (any more)."""
    if not (isinstance(ended, PartEnded) and ended.is_disk_full):
        return None
    return NodeFault(NODE_FULL, f"its disk is full: {ended.reason}")


def tell_fault(fault: NodeFault, hello: WorkerHello) -> None:
    """By a connection of its own; what speaks for the node has none yet."""
    with contextlib.suppress(DaemonGone, OSError):
        daemon = DaemonConnection()
        daemon.send(hello)
        daemon.send(fault.message())
        until = time.monotonic() + HEARD_S
        while (left_s := until - time.monotonic()) > 0:
            daemon.receive(left_s)
