"""Measurements over a network of namespaces, with plain sockets: round trips, lost datagrams, bulk by TCP streams."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.harness.internet.namespaces import enter_namespace
from tests.harness.internet.network import Internet
from tests.harness.running.network_namespaces import Network

PORT, ECHO_PORT = 5000, 5001
SO_RCVBUFFORCE = 33
BLOCK = bytes(1 << 20)
LENGTH_BYTES = 8
SILENCE_S = 1.0
RECEIVE_BYTES = 8 << 20
"""Datagrams wait here while the machine does something else: what is lost was lost on the way."""
T = TypeVar("T")


def _inside(network: Network, name: str, work: Callable[[], T]) -> T:
    """`work` in a thread that is in a site's namespace; sockets stay where they were made."""
    with ThreadPoolExecutor(1, f"in-{name}", enter_namespace, (network.namespace(name),)) as pool:
        return pool.submit(work).result()


def _serve(network: Network, name: str, answer: Callable[[socket.socket], None], port: int = PORT) -> socket.socket:
    """A listening socket at a site; each connection is answered in a thread of its own until it is closed."""
    server = _inside(network, name, lambda: socket.create_server((network.address(name), port), backlog=64))

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return server


def _connect(network: Network, here: str, there: str, port: int = PORT) -> socket.socket:
    connection = _inside(network, here, lambda: socket.create_connection((network.address(there), port), 30))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def _sink(connection: socket.socket) -> None:
    """Confirms each load, whose length in eight bytes goes before it."""
    with connection:
        while head := connection.recv(LENGTH_BYTES, socket.MSG_WAITALL):
            left = int.from_bytes(head, "big")
            while left:
                left -= len(connection.recv(min(left, 1 << 20)))
            connection.sendall(b".")


@contextlib.contextmanager
def echo(network: Network, here: str, there: str) -> Iterator[Callable[[], float]]:
    """What measures one round trip, in seconds, on a connection that stands, beside whatever else is sent."""

    def trip() -> float:
        began = time.monotonic()
        connection.sendall(b".")
        connection.recv(1)
        return time.monotonic() - began

    with (
        _serve(network, there, _echo, ECHO_PORT) as server,
        _connect(network, here, there, ECHO_PORT) as connection,
    ):
        yield trip
        server.shutdown(socket.SHUT_RDWR)


def round_trips_s(network: Network, here: str, there: str, count: int = 9) -> list[float]:
    """Times of one byte there and back, on a connection that stands."""
    with echo(network, here, there) as trip:
        return [trip() for _ in range(count)]


def _carried(internet: Internet, there: str) -> int:
    """Packets to a site that are not under way any more."""
    return sum(internet.counts()[internet.address(there)].values())


def datagrams_received(network: Internet, here: str, there: str, count: int) -> list[int]:
    """Numbers of those of `count` datagrams that arrived, in order of arrival; once none is under way any more."""

    def bound() -> socket.socket:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
        receiver.bind((network.address(there), PORT))
        receiver.settimeout(SILENCE_S)
        return receiver

    receiver = _inside(network, there, bound)
    sender = _inside(network, here, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def send() -> None:
        for number in range(count):
            sender.sendto(number.to_bytes(4, "big"), (network.address(there), PORT))

    found, is_over, before = [], False, _carried(network, there)
    with receiver, sender, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        while True:
            try:
                found.append(int.from_bytes(receiver.recv(4), "big"))
            except TimeoutError:  # nothing comes, or somebody on the way stands still
                if is_over:
                    return found
                is_over = sending.done() and _carried(network, there) - before >= count
                if is_over:
                    sending.result()


def bulk_bytes_per_s(
    network: Network, here: str, there: str, mib: int, streams: int = 1, *, is_warm: bool = False
) -> float:
    """Speed of `mib` MiB over so many TCP connections at once, from the first byte to the last confirmation. `is_warm`:
    of a second load, on connections that know the link by then."""
    num_blocks = mib // streams

    def send(connection: socket.socket) -> None:
        connection.sendall((num_blocks * len(BLOCK)).to_bytes(LENGTH_BYTES, "big"))
        for _ in range(num_blocks):
            connection.sendall(BLOCK)
        connection.recv(1)

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_serve(network, there, _sink))
        connections = [stack.enter_context(_connect(network, here, there)) for _ in range(streams)]
        pool = stack.enter_context(ThreadPoolExecutor(streams))
        for _ in range(2 if is_warm else 1):
            began = time.monotonic()
            list(pool.map(send, connections))
            elapsed = time.monotonic() - began
        server.shutdown(socket.SHUT_RDWR)
    return num_blocks * streams * len(BLOCK) / elapsed
