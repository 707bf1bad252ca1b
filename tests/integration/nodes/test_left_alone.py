"""A node at whose fault nothing runs there: what has the key and sends half a message, and a disk that is full. Neither
is a trainer or a part that failed; both are named, left alone for a while, and others with room take their places.
"""

import asyncio
import contextlib
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dilocoxd import __version__
from dilocoxd.answers.nodes import NodeAside, node_wait
from dilocoxd.daemon.site.interface import SiteSettings
from dilocoxd.errors import WireError
from dilocoxd.ipc.sealed import FRONT_BYTES, Seal, SealedSocket, greeting, new_salt, salt_of
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.wire.local.node import PART_PLACE, STAGE_PLACE, HeadHello, NodeHello, NodeRefused, PartFolder
from tests.integration.nodes.node_process import WAIT_S
from tests.integration.nodes.test_node_command import KEY as DOOR_KEY, open_door
from tests.integration.nodes.test_parts_on_nodes import head_settings, losses, node_of as node_with_part
from tests.integration.nodes.test_stages_on_nodes import (
    lost_trainers,
    node_of,
    site_settings,
    stage_of,
    trains_again,
)
from tests.integration.one_site.site_world import World, kill, running
from tests.integration.one_site.test_outer_parts import one_worker

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
KEY = bytes.fromhex("5a" * 32)
DISK_BYTES = 32 << 20


class HalfNode:
    """Has the key and says hello; where it is to run something it begins an answer, and sends no more of it."""

    def __init__(self, settings: SiteSettings, kind: str, *, has_folder: bool = False) -> None:
        """`has_folder`: it answers once before."""
        self.refused = ""
        self.taken = threading.Event()
        self._kind, self._has_folder = kind, has_folder
        self._address = settings.node_address
        self._sockets: list[socket.socket] = []
        self._is_over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            with contextlib.suppress(OSError, EOFError, WireError):  # the door may close in the middle
                self._come()

    def _come(self) -> None:
        with socket.create_connection(self._address, WAIT_S) as sock:
            self._sockets.append(sock)
            salt = new_salt()
            sock.sendall(greeting(salt))
            theirs = salt_of(sock.recv(FRONT_BYTES, socket.MSG_WAITALL))
            seal = Seal(KEY, theirs + salt, is_head=False)
            link = SealedSocket(sock, seal)
            assert isinstance(link.receive(), HeadHello)
            link.send(NodeHello(__version__, "", "", "half", self._kind, "a folder", "one start"))
            wanted = link.receive()
            if isinstance(wanted, NodeRefused):
                self.refused = wanted.reason
                return
            self.taken.set()
            if self._has_folder:
                link.send(PartFolder("/nowhere"))
            sock.sendall(seal.frame(PartFolder("/nowhere"))[:9])
            while sock.recv(1 << 16):
                pass

    def end(self) -> None:
        self._is_over.set()
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(WAIT_S)


@contextlib.contextmanager
def half_node(settings: SiteSettings, kind: str, **more: Any) -> Iterator[HalfNode]:
    node = HalfNode(settings, kind, **more)
    try:
        yield node
    finally:
        node.end()


@pytest.fixture(autouse=True)
def long_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites run in this process, and a slow machine may look late."""
    monkeypatch.setattr("dilocoxd.daemon.head.aside.TOLD_S", 10_000.0)


def asides(world: World) -> tuple[NodeAside, ...]:
    nodes = world.site.status().nodes
    assert nodes is not None
    return nodes.aside


async def until(world: World, condition: Any) -> None:
    """Nothing is told of it."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.05)


async def test_half_a_hello_at_the_door_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told as another key or version."""
    monkeypatch.setattr("dilocoxd.daemon.head.door.GREET_TIMEOUT_S", 0.5)
    async with open_door() as door:
        with socket.create_connection(door.address) as sock:
            salt = new_salt()
            sock.sendall(greeting(salt))
            theirs = salt_of(await asyncio.to_thread(sock.recv, FRONT_BYTES, socket.MSG_WAITALL))
            hello = NodeHello(__version__, "", "", "half", PART_PLACE)
            sock.sendall(Seal(DOOR_KEY, theirs + salt, is_head=False).frame(hello)[:-1])
            async with asyncio.timeout(WAIT_S):
                while not door.refused.count:
                    await asyncio.sleep(0.01)
        assert door.refused.why.startswith("it did not say who it is in time") and not door.num_waiting


@pytest.mark.parametrize("has_folder", [False, True])
async def test_node_that_sends_half_a_message_is_named_and_a_spare_trains(tmp_path: Path, has_folder: bool) -> None:
    settings = site_settings(tmp_path, on_nodes=True, delay="phase")
    with half_node(settings, STAGE_PLACE, has_folder=has_folder) as half, contextlib.ExitStack() as stack:
        async with running(settings) as world:
            await until(world, lambda: stage_of(world).state == "running")
            assert stage_of(world).node == "half (127.0.0.1)"
            stack.enter_context(node_of(settings, tmp_path / "node"))
            await world.until(lambda: lost_trainers(world), "it is given up")
            (row,) = asides(world)
            assert row.node == "half (127.0.0.1)" and row.why.startswith("its machine answers, but it owed an answer")
            await trains_again(world, 2)
            assert stage_of(world).node != row.node
            await until(world, lambda: half.refused)
            assert half.refused == row.why, "who reads its log hears it, too"
            assert world.site.trainer.restarts.left == settings.restarts_max, "no trainer has failed"
    (told,) = lost_trainers(world)
    assert "stage rank 1 on node half (127.0.0.1)" in told and "start it again, or start one on another machine" in told


async def test_part_on_a_node_that_sends_half_a_message_goes_to_a_spare(tmp_path: Path) -> None:
    settings = head_settings(tmp_path, 1)
    with half_node(settings, PART_PLACE) as half, contextlib.ExitStack() as stack:

        async def spare() -> None:
            await asyncio.to_thread(half.taken.wait, WAIT_S)
            stack.enter_context(node_with_part(settings, tmp_path / "node"))

        async with asyncio.TaskGroup() as group:
            group.create_task(spare())
            async with running(settings) as world:
                await world.until(lambda: len(world.committed) >= 2, "2 entries")
                (row,), (told, *_) = asides(world), losses(world)
                assert told.startswith(f"part 1 on node {row.node}: {row.why} (")
                assert world.site.outer.restarts.left == settings.restarts_max, "no part has failed"
                assert await world.replay() == one_worker(world).anchor_sha256


@pytest.mark.remedy("alert:node_left_alone")
async def test_full_disk_of_a_node_spends_nothing_and_room_heals_it(tmp_path: Path) -> None:
    for words in (
        "Free space at the path that the text names",
        "it is tried again by itself",
        "one on another machine",
    ):
        assert words in kind_of("node_left_alone").remedy, "the last is followed above"
    settings = site_settings(tmp_path, on_nodes=True, has_parts=True, delay="phase")
    with small_disk(tmp_path / "node") as disk, node_of(settings, disk) as node:
        async with running(settings) as world:
            await trains_again(world, 1)
            here, trainers = stage_of(world).node, world.site.trainer.restarts
            with full(disk):
                kill(node.trainers()[0], signal.SIGKILL)
                await until(world, lambda: len(lost_trainers(world)) >= 3)
                (row,) = asides(world)
                assert row.node == here and row.why.startswith("its disk is full: the node cannot note what it runs: ")
                assert str(disk / "stage-slot-0") in row.why and "free space there" in row.why
                assert trainers.left == settings.restarts_max - 1, "the one that was killed"
                await until(world, lambda: node_wait(world.site.status().nodes))
                told = node_wait(world.site.status().nodes)
                assert f"the node {here} with stage 1, left alone since " in told and f": {row.why}" in told
            await trains_again(world, 4)
            assert stage_of(world).node == here and trainers.left == settings.restarts_max - 1
            lost = len(losses(world))
            with full(disk):
                kill(node.parts()[0], signal.SIGKILL)
                await world.until(lambda: len(losses(world)) >= lost + 2, "the part is tried again")
            await entries_again(world)
            assert world.site.outer.restarts.left == settings.restarts_max - 1, "the one that was killed"
            assert await world.replay() == one_worker(world).anchor_sha256
            assert "its disk is full: the node cannot note what it runs: " in losses(world)[lost + 1]
    full_disk = lost_trainers(world)[1]
    assert f"stage rank 1 on node {here}: its disk is full" in full_disk
    assert f"the node {here} is left alone" in full_disk


async def entries_again(world: World) -> None:
    done = len(world.committed)
    await world.until(lambda: len(world.committed) >= done + 2, "2 entries")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Whatever is removed there: a place that has ended comes back after a second, and room is taken sooner."""
    is_over = threading.Event()

    def fill() -> None:
        with (disk / "filler").open("wb", buffering=0) as file:
            while not is_over.wait(0.001):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(4096))

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        (disk / "filler").unlink()
