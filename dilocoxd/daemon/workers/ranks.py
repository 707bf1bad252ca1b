"""What the ranks of one generation are told of each other: torch's usual variables, and a rendezvous port.

We listen on the port before the first rank exists and rank 0 inherits the socket, so nobody can take the port from it,
and a rank that is faster than rank 0 waits in the queue instead of being refused. The last ranks may run on nodes of
the site: then the port is one of the network that all share, and a process here stands for each of their stages.
"""

import contextlib
import dataclasses
import socket
from collections.abc import Sequence
from typing import Final, Protocol

from dilocoxd.config.addresses import socket_family
from dilocoxd.daemon.workers.forked import ForkLaunch, WorkerPlace, Workers
from dilocoxd.ipc.client import CLUSTER_ADDRESS_VARIABLE, LISTENER_VARIABLE

ADDRESS: Final = "127.0.0.1"


class TakenNode(Protocol):
    """A node that is there for a stage (daemon/head/stage.py)."""

    async def start(self, launch: ForkLaunch) -> Workers:
        """The process that stands for the ranks of `launch`, which are there from now on. Raises WorkerError."""

    def close(self) -> None:
        """Our end of the connection; a process that was started has its own."""


class StagePlaces(Protocol):
    """Where the ranks of the last stages run: on nodes (daemon/head/stage.py)."""

    num: int
    """Stages."""
    here: int
    """Ranks of each."""

    async def take(self) -> Sequence[TakenNode]:
        """A node with room for each stage, for the caller to close; waits until there are all of them. Raises
        WorkerError when the site stops."""

    def note_fault(self, index: int, why: str) -> None:
        """The node that runs this one of these stages is at fault, and no trainer is."""

    def node_of(self, index: int) -> str:
        """What people call the node that has this one of these stages, or had it last."""


def listen(address: str = ADDRESS) -> socket.socket:
    """A listening socket on a free port of this machine. Raises OSError."""
    family = socket_family(address)
    return socket.create_server((address, 0), family=family)


def with_ranks(launch: ForkLaunch, num_ranks: int, listener: socket.socket, here: int | None = None) -> ForkLaunch:
    """`launch`, which has one environment, for so many ranks that meet at `listener`; `here`: only the first so many
    run on this machine."""
    (common,) = launch.environments
    local = num_ranks if here is None else here
    address, port = listener.getsockname()[:2]
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks)}
    if local < num_ranks:
        meeting[CLUSTER_ADDRESS_VARIABLE] = address
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(local)]
    return dataclasses.replace(
        launch,
        environments=tuple({**common, **meeting, "LOCAL_WORLD_SIZE": str(local), **rank} for rank in ranks),
        passed={LISTENER_VARIABLE: listener.fileno()},
    )


async def start_ranks(
    launch: ForkLaunch, num_ranks: int, here: WorkerPlace, away: StagePlaces | None, address: str = ADDRESS
) -> Workers:
    """All ranks of a generation, the last ones `away`, as soon as there are nodes for them.

    Raises WorkerError, OSError; then none of them runs.
    """
    num_here = num_ranks - (away.num * away.here if away is not None else 0)
    async with contextlib.AsyncExitStack() as undo:
        with contextlib.ExitStack() as stack:
            nodes = await away.take() if away is not None else ()
            for node in nodes:
                stack.callback(node.close)
            listener = stack.enter_context(listen(address))
            whole = with_ranks(launch, num_ranks, listener, num_here)
            started = [await here.start(whole)]
            undo.push_async_callback(started[0].end, grace_s=0.0)  # all of them: they have one mark
            for index, node in enumerate(nodes):
                assert away is not None
                first = num_here + index * away.here
                common = {**whole.environments[0], "RANK": str(first), "LOCAL_WORLD_SIZE": str(away.here)}
                started.append(await node.start(dataclasses.replace(launch, environments=(common,), header="")))
        undo.pop_all()
    return Workers.together(started)
