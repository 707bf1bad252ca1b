"""What the ranks of one generation are told of each other: torch's usual variables, and a rendezvous port.

We listen on the port before the first rank exists and rank 0 inherits the socket, so nobody can take the port from it,
and a rank that is faster than rank 0 waits in the queue instead of being refused.
"""

import dataclasses
import socket
from typing import Final

from dilocoxd.daemon.workers.forked import ForkLaunch
from dilocoxd.ipc.client import LISTENER_VARIABLE

ADDRESS: Final = "127.0.0.1"


def listen() -> socket.socket:
    """A listening socket on a free port of this machine. Raises OSError."""
    return socket.create_server((ADDRESS, 0))


def with_ranks(launch: ForkLaunch, num_ranks: int, listener: socket.socket) -> ForkLaunch:
    """`launch`, which has one environment, for so many ranks that meet at `listener`."""
    (common,) = launch.environments
    port = listener.getsockname()[1]
    meeting = {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
    return dataclasses.replace(
        launch,
        environments=tuple({**common, **meeting, "LOCAL_WORLD_SIZE": str(num_ranks), **rank} for rank in ranks),
        passed={LISTENER_VARIABLE: listener.fileno()},
    )
