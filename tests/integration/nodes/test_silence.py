"""When a connection between head and node ends by silence: soon where the other machine is gone, not where it is slow.

The kernel's own end by stall is out of reach in these tests, as it was too late in the field: with it, keepalive
probes end nothing.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from dilocoxd.ipc import sealed
from dilocoxd.ipc.sealed import Seal, SealedSocket, end_when_silent, is_silent
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
def connected(network: Network) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ends of one connection, at the head and at the node."""
    with standing_in(network.namespace("head")):
        door = socket.create_server((network.address("head"), PORT))
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
