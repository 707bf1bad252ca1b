"""A node that comes to a head, and a daemon whose outer worker cannot work: what they say, done."""

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dilocoxd import __version__
from dilocoxd.config.footprint.nodes import NodeNeeds
from dilocoxd.daemon.node.slot import PartSlot
from dilocoxd.daemon.node.slot_world import Lent, SlotWorld
from dilocoxd.daemon.process.torch_release import torch_release
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.daemon.workers.forked import ForkLaunch, Workers
from dilocoxd.daemon.workers.outer_worker import OuterSettings, OuterWorker
from dilocoxd.errors import ConfigError
from dilocoxd.ipc.keep_alive import RestartBudget
from dilocoxd.ipc.sealed import KEY_BYTES, read_node_key
from dilocoxd.outerworker import main as outer_main
from dilocoxd.store.admission import write_secret
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.integration.nodes.test_node_command import open_door
from tests.remedies.refused.rooms.told import told

NOTHING = Lent()
WAITED_S = 1.0
"""The head answers a node that it refuses at once, and says nothing to one that waits."""
GIB = 1 << 30
OTHER_KEY = "11" * KEY_BYTES


async def come(folder: Path, address: tuple[str, int], lent: Lent = NOTHING) -> None:
    """A node with the key in `folder`, as far as the head's greeting; one that lends something until it is refused, or
    has waited."""
    nothing: Any = None
    world = SlotWorld(*address, read_node_key(folder / "node.key"), folder, nothing, "mark", folder / "sock", print)
    reader, writer = await asyncio.open_connection(*address)
    slot = PartSlot(dataclasses.replace(world, lent=lent), 0)
    try:
        stream = await slot._greeted(reader, writer)
        if lent != NOTHING:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAITED_S):
                    await slot._start(stream)
    finally:
        writer.close()


async def test_a_node_with_another_key_or_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door() as door:
        write_secret(tmp_path / "node.key", OTHER_KEY)
        with told("daemon/node/slot.py", "copy the file that its cluster.key_file names to this machine"):
            await come(tmp_path, door.address)
        write_secret(tmp_path / "node.key", door._key.hex())
        with monkeypatch.context() as older:
            older.setattr("dilocoxd.daemon.node.slot.__version__", "0.0.1")
            with told("daemon/node/slot.py", "install the same version on both"):
                await come(tmp_path, door.address)
        await come(tmp_path, door.address)
        assert __version__ != "0.0.1"


@contextlib.contextmanager
def refused(words: str) -> Iterator[None]:
    """The node ends with the head's sentence, which is no error of the head (daemon/head/room.py)."""
    with pytest.raises(ConfigError, match=re.escape(words)) as error:
        yield
    assert error.value.exit_code == 78


async def test_a_node_with_too_little_memory(tmp_path: Path) -> None:
    needs = NodeNeeds(num_parts=8, part_bytes=3 * GIB, stage_bytes=(GIB, 2 * GIB), gpu_bytes=20 * GIB)
    async with open_door(needs=needs) as door:
        write_secret(tmp_path / "node.key", door._key.hex())
        small = Lent(num_parts=4, num_stages=1, memory_bytes=8 * GIB)
        with refused("start it with fewer --parts or --stages"):
            await come(tmp_path, door.address, small)
        await come(tmp_path, door.address, dataclasses.replace(small, num_parts=2))
        with refused("use more parallel.pipeline, parallel.shard or parallel.tensor at the head"):
            await come(tmp_path, door.address, Lent(0, 2, 64 * GIB, 16 * GIB))
        await come(tmp_path, door.address, Lent(0, 2, 64 * GIB, 24 * GIB))


async def test_a_node_that_fits_no_place_of_the_head(tmp_path: Path) -> None:
    """It waited for ever, or its trainers failed again and again."""
    async with open_door(needs=NodeNeeds(num_parts=2)) as door:
        write_secret(tmp_path / "node.key", door._key.hex())
        with refused("start it with --parts, or change site.toml of the head"):
            await come(tmp_path, door.address, Lent(0, 2))
        await come(tmp_path, door.address, Lent(1, 0))
    async with open_door(needs=NodeNeeds(stage_bytes=(1, 1), gpu_bytes=1, stage_gpus=4)) as door:
        write_secret(tmp_path / "node.key", door._key.hex())
        with refused("start it with --stages, or change site.toml of the head"):
            await come(tmp_path, door.address, Lent(1, 0))
        with refused("start it with fewer --stages, or lower parallel.shard"):
            await come(tmp_path, door.address, Lent(0, 2, 8, 8, 4))
        await come(tmp_path, door.address, Lent(0, 1, 8, 8, 4))
        with refused("install the same release on both"):
            await come(tmp_path, door.address, Lent(0, 1, 8, 8, 4, "2.0.1"))
        await come(tmp_path, door.address, Lent(0, 1, 8, 8, 4, torch_release()))


class Place:
    """Where outer workers run: one that ends with the status that `main` gives, and what it wrote into its log."""

    def __init__(self, run: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._run, self._log, self._patch = run, log, monkeypatch

    where = ""

    async def start(self, launch: ForkLaunch) -> Workers:
        with self._log.open("w") as log, self._patch.context() as patch:
            patch.setenv("DILOCOXD_RUN_DIR", str(self._run))
            patch.setattr("sys.stderr", log)
            status = outer_main.main()
        over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        over.set_result(status)
        return Workers(launch.mark, (2**22 + 1,), (over,), lambda reason: None)

    def note_attached(self) -> None: ...

    def note_fault(self, why: str) -> None: ...

    def outer_described(self, description: Any) -> None: ...

    def outer_started(self, state: Any) -> None: ...

    def outer_lost(self, reason: str) -> None: ...


async def test_an_outer_worker_that_refuses_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line of its log is the sentence, and says itself what to do."""
    text, log = tiny_manifest().to_toml(), tmp_path / "outer.log"
    (tmp_path / "run.toml").write_text(text.replace('codec = "int4"', 'codec = "int5"'))
    place = Place(tmp_path, log, monkeypatch)
    launch = ForkLaunch("nothing", ({},), log, "mark-of-nobody", "")
    budget = RestartBudget(9, 3600.0, 3600.0, 3600.0)
    outer = OuterWorker(OuterSettings(lambda generation: launch, budget, 0.0, 60.0), place, Buffers(), place)
    with told("daemon/workers/outer_worker.py", "see the last line of logs/outer.log"):
        await outer.run()
    sentence = log.read_text().splitlines()[-1]
    assert "strategy.codec" in sentence and "int5" in sentence
    (tmp_path / "run.toml").write_text(text)
    monkeypatch.setattr(outer_main, "DaemonConnection", lambda: None)
    served: list[object] = []
    monkeypatch.setattr(outer_main, "serve", lambda connection, plan: served.append(plan))
    monkeypatch.setattr("os.nice", lambda by: 0)
    await place.start(launch)
    assert served and ConfigError.exit_code == 78
