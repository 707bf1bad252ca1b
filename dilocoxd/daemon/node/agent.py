"""What `dilocoxd node` runs on a machine behind a head: places for outer parts and stages, each with a connection to
the head.

Owns the fork server, the local socket and the buffers of its machine. Decides nothing: what runs here starts when the
head's end of a connection says so, and ends with that connection; buffers of a part stay for the next one (slot.py).
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.daemon.node.slot import PartSlot, Slot
from dilocoxd.daemon.node.slot_world import Lent, SlotWorld
from dilocoxd.daemon.node.stage_slot import StageSlot
from dilocoxd.daemon.node.uplink import Uplink
from dilocoxd.daemon.process.open_files import allow_open_files
from dilocoxd.daemon.process.torch_release import torch_release
from dilocoxd.daemon.site.launch import FORK_SERVER_COMMAND, fork_server_environment, socket_place
from dilocoxd.daemon.workers.fork_server import ForkServer, ForkServerSettings
from dilocoxd.daemon.workers.forked import OUTER_MODULE, PIPELINE_MODULE, TRAINER_MODULE
from dilocoxd.daemon.workers.local_server import Connection, LocalServer, WorkerHandler
from dilocoxd.daemon.workers.supervisor import Launch, keep_reaper, mark_this_process
from dilocoxd.ipc.keep_alive import RestartBudget
from dilocoxd.ipc.machine_memory import gpu_memories, machine_memory
from dilocoxd.wire.local.worker import WorkerHello

RESTARTS_MAX: Final = 10
RESTART_WINDOW_S: Final = 600.0
WARM_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class LentMachine:
    """What the operator of a node says."""

    host: str
    port: int
    """Of the head."""
    key: bytes
    directory: Path
    num_slots: int
    """Outer parts that may run here at a time."""
    num_stages: int = 0
    """Likewise pipeline stages."""
    announce: str = ""
    """Where other sites reach this machine, ADDRESS[:PORT]; empty: at its own address."""


class _Listener:
    """Of the fork server: parts that wait for it go on by themselves."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def fork_server_warm(self) -> None:
        """Nothing to say."""

    def fork_server_lost(self, reason: str) -> None:
        self._tell(f"the fork server is lost: {reason}; see logs/fork-server.log")


async def run_node(settings: LentMachine, tell: Callable[[str], None]) -> None:
    """Until cancelled. Raises, in a group, ConfigError when the head cannot be ours, WorkerError when nothing can be
    started here."""
    allow_open_files()
    # Before anything runs here: later it would be what is left beside our own parts.
    num_parts, num_stages = settings.num_slots, settings.num_stages
    gpus = await asyncio.to_thread(gpu_memories) if num_stages else []
    free, smallest = machine_memory().available, min(gpus, default=0)
    lent = Lent(num_parts, num_stages, free, smallest, len(gpus), torch_release())
    mark = mark_this_process()
    socket_path, private = socket_place(settings.directory)
    fork_server = ForkServer(_fork_server_settings(settings, mark), _Listener(tell))
    uplink = Uplink(settings.announce, settings.host)
    world = SlotWorld(
        settings.host,
        settings.port,
        settings.key,
        settings.directory,
        fork_server,
        mark,
        socket_path,
        tell,
        uplink,
        lent,
    )
    slots: list[Slot] = [PartSlot(world, number) for number in range(num_parts)]
    slots += [StageSlot(world, number, num_stages) for number in range(num_stages)]

    def admit(hello: WorkerHello, connection: Connection) -> WorkerHandler | None:
        return next(filter(None, (slot.admit(hello, connection) for slot in slots)), None)

    server = LocalServer(socket_path, admit)
    server.listen()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_reaper(mark), name="reaper")
            group.create_task(server.serve(), name="local server")
            group.create_task(fork_server.run(), name="fork server")
            group.create_task(world.uplink.run(), name="data connections to other sites")
            group.create_task(world.uplink.inlet.run(), name="data connections of other sites")
            for slot in slots:
                group.create_task(slot.run(), name=f"slot for {slot.what} {slot.number}")
    finally:
        for slot in slots:
            slot.close()
        if private is not None:
            private.rmdir()


def _fork_server_settings(settings: LentMachine, mark: str) -> ForkServerSettings:
    def launch(generation: int) -> Launch:
        log = settings.directory / "logs" / "fork-server.log"
        header = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} fork server generation {generation} of a node"
        command = (*FORK_SERVER_COMMAND, str(settings.directory))
        return Launch(command, fork_server_environment(), log, f"{mark}/fork-server-{generation}", header)

    parts = [OUTER_MODULE] if settings.num_slots else []
    stages = [TRAINER_MODULE, PIPELINE_MODULE] if settings.num_stages else []
    return ForkServerSettings(launch, (*parts, *stages), RestartBudget(RESTARTS_MAX, RESTART_WINDOW_S), WARM_TIMEOUT_S)
