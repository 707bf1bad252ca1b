"""Where the ranks of one generation meet: torch's usual variables, and a socket that listens from the start.

The daemon opened the port (daemon/workers/ranks.py) and rank 0 inherited it; a rank started by other means may go
without, then rank 0 binds MASTER_PORT itself.
"""

from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist

from dilocoxd.ipc.client import LISTENER_VARIABLE


def join(backend: str, environment: Mapping[str, str], *, timeout: timedelta) -> None:
    """Make the default process group of all ranks. Raises RuntimeError when they do not meet within `timeout`."""
    rank, num_ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    listener = environment.get(LISTENER_VARIABLE)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch's own typing leaves it out
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        num_ranks,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=int(listener) if listener is not None else None,
    )
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
