"""When a connection between head and node ends by silence: soon where the other machine is gone, not where it is slow.

The kernel's own end by stall is out of reach in these tests, as it was too late in the field: with it, keepalive
probes end nothing.
"""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from dilocoxd.daemon.head import silences
from dilocoxd.daemon.head.door import NodeDoor
from dilocoxd.daemon.workers.forked import Workers
from dilocoxd.ipc import sealed
from dilocoxd.ipc.sealed import Seal, SealedSocket, SilenceLimit, end_when_silent, is_silent, silence_s
from dilocoxd.wire.local.node import PartEnded
from tests.harness.internet.namespaces import standing_in
from tests.harness.running.network_namespaces import Network
from tests.harness.running.sites import wait_until

pytestmark = pytest.mark.processes
PORT, KEY, SALTS = 31340, bytes(32), bytes(64)
WAIT_S = 60.0
NAMES = ("head", "node")


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(f"si{os.getpid() % 10000}", NAMES) as made:
        yield made


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "SILENCE_S", 1)
    monkeypatch.setattr(sealed, "STALL_S", 1000)


@contextlib.contextmanager
def connected(network: Network, port: int = PORT) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ends of one connection, at the head and at the node."""
    with standing_in(network.namespace("head")):
        door = socket.create_server((network.address("head"), port))
    with door, standing_in(network.namespace("node")):
        there = socket.create_connection(door.getsockname())
        here, _ = door.accept()
    with here, there:
        end_when_silent(here)
        end_when_silent(there)
        yield here, there


@pytest.mark.parametrize("is_busy", [False, True])
def test_machine_that_is_gone_ends_the_connection_long_before_a_stall(network: Network, is_busy: bool) -> None:
    with connected(network) as (here, there):
        link = SealedSocket(here, Seal(KEY, SALTS, is_head=True))
        link.watch()
        ends: list[str] = []

        def read() -> None:
            try:
                link.receive()
            except (OSError, EOFError) as error:
                ends.append(str(error))

        network.cut("node")
        if is_busy:
            link.send(PartEnded("what nobody answers"))
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(WAIT_S)
        network.heal("node")
        assert ends == ["the node said nothing for 1 s"]
        assert there.fileno() >= 0, "it was not the other side that closed"


def test_silence_that_is_borne_loses_nothing(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is longer than a stall."""
    monkeypatch.setattr(sealed, "STALL_S", 4)
    with connected(network) as (here, there):
        link = SealedSocket(here, Seal(KEY, SALTS, is_head=True))
        patience = SilenceLimit(there, 1000)
        link.watch(1000)
        network.cut("node")
        link.send(PartEnded("said in the dark"))

        def is_longer_than_a_stall() -> bool:
            assert not patience.look()
            return min(silence_s(here), silence_s(there)) > 6

        wait_until(is_longer_than_a_stall, "a long silence", WAIT_S, poll_s=0.05)
        assert patience.is_tried
        network.heal("node")
        there.settimeout(WAIT_S)
        assert SealedSocket(there, Seal(KEY, SALTS, is_head=False)).receive() == PartEnded("said in the dark")
        wait_until(lambda: not patience.look() and not patience.is_tried, "it answers again", WAIT_S, poll_s=0.05)


async def test_silence_is_borne_until_others_have_room_for_all_that_are_silent(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silences, "LOOK_INTERVAL_S", 0.05)
    looks, free, notes = asyncio.Queue[float](), 0, asyncio.Queue[bool]()

    def num_free(answered_s: float) -> int:
        looks.put_nowait(answered_s)
        return free

    borne = silences.BorneSilences(num_free)
    running = Workers("test-silence", (0,), (asyncio.get_running_loop().create_future(),), lambda told: None)
    with connected(network) as (one, _), connected(network, PORT + 1) as (other, _):
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
            minding = [
                group.create_task(borne.mind(sock.dup(), running, 1000, notes.put_nowait)) for sock in (one, other)
            ]
            network.cut("node")
            assert [await notes.get() for _ in minding] == [True, True]
            free = 1
            for _ in range(10):
                await looks.get()
            assert not any(task.done() for task in minding), "room for one of them is none"
            network.heal("node")
            assert [await notes.get() for _ in minding] == [False, False]
            network.cut("node")
            assert [await notes.get() for _ in minding] == [True, True]
            free = 2
        network.heal("node")
        assert one.recv(1) == other.recv(1) == b"", "both were ended"


def test_machine_that_reads_nothing_is_not_silent(network: Network) -> None:
    with connected(network) as (here, _there):
        here.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                here.send(bytes(1 << 16))
        # Its kernel says again and again that it has no room, with growing pauses: longer ones than a silence.
        pauses_ms: list[int] = []

        def is_long() -> bool:
            assert not is_silent(here)
            info = here.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
            pauses_ms.append(int.from_bytes(info[56:60], "little"))
            return pauses_ms[-1] > 1500

        wait_until(is_long, "a pause", WAIT_S, poll_s=0.05)


def test_address_that_the_head_has_lost_is_told() -> None:
    """What listens there does not notice, and no node reaches it."""
    with Network(f"sm{os.getpid() % 10000}", ("head",)) as network, standing_in(network.namespace("head")):
        address = network.address("head")
        door = NodeDoor(address, PORT, KEY, "this start")
        door.listen()
        assert not door.lost_address()
        network.inside("head", "ip", "address", "flush", "dev", "eth0")
        assert door.lost_address() == address
