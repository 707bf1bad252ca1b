"""The process that carries packets between namespaces: one TUN device in each, every packet late, some never.

`python -m tests.harness.internet.forwarder SEED MTU NAMESPACE=ADDRESS...`. Prints one line when all devices stand. Each
line on stdin is JSON: conditions from now on; each is answered with the counts so far. Ends when stdin ends.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict

from tests.harness.internet.conditions import Conditions, LinkQueue
from tests.harness.internet.namespaces import enter_namespace

DEVICE = "eth0"
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
DESTINATION = slice(16, 20)
"""Of an IPv4 header."""
PREFIX_BITS = 24
TRANSMIT_QUEUE = 10_000
READS_PER_TURN = 64


def open_device(namespace: str, address: str, mtu: int) -> int:
    """Descriptor of a new TUN device `eth0` in a namespace, with its address, up. The thread is in it afterwards."""
    enter_namespace(namespace)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    for command in (
        f"ip addr add {address}/{PREFIX_BITS} dev {DEVICE}",
        f"ip link set {DEVICE} mtu {mtu} txqueuelen {TRANSMIT_QUEUE} up",
        "ip link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    return fd


class Forwarder:
    """Reads packets from all devices and writes each to the device of its destination when it is due."""

    def __init__(self, devices: dict[bytes, int], mtu: int, rng: random.Random) -> None:
        self._devices = devices
        self._mtu = mtu
        self._queues = {address: LinkQueue(rng) for address in devices}
        self._under_way: list[tuple[float, int, bytes, bytes]] = []
        self._number = 0
        self._conditions = Conditions()
        self._poll = select.epoll()
        for fd in (*devices.values(), sys.stdin.fileno()):
            self._poll.register(fd, select.EPOLLIN)

    def run(self) -> None:
        """Until stdin ends."""
        stdin = sys.stdin.fileno()
        while True:
            wait = max(0.0, self._under_way[0][0] - time.monotonic()) if self._under_way else None
            for fd, _ in self._poll.poll(wait):
                if fd == stdin:
                    if not self._told(sys.stdin.readline()):
                        return
                else:
                    self._take(fd)
            self._deliver()

    def _told(self, line: str) -> bool:
        if not line:
            return False
        self._conditions = Conditions(**json.loads(line))
        counts = {
            socket.inet_ntoa(address): {"delivered": q.delivered, "lost": q.lost, "overflowed": q.overflowed}
            for address, q in self._queues.items()
        }
        print(json.dumps({"conditions": asdict(self._conditions), "counts": counts}), flush=True)
        return True

    def _take(self, fd: int) -> None:
        for _ in range(READS_PER_TURN):
            try:
                packet = os.read(fd, self._mtu)
            except BlockingIOError:
                return
            except OSError:  # the device is down: a cable that is pulled
                return
            destination = packet[DESTINATION]
            queue = self._queues.get(destination)
            if queue is None:
                continue  # broadcast, IPv6: nobody here listens to it
            due = queue.due(len(packet), self._conditions, time.monotonic())
            if due is not None:
                self._number += 1
                heapq.heappush(self._under_way, (due, self._number, destination, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, destination, packet = heapq.heappop(self._under_way)
            self._queues[destination].arrived(len(packet))
            try:
                os.write(self._devices[destination], packet)
            except OSError:  # down, or its queue is full: a packet is lost, as on a wire
                continue


def main(seed: str, mtu: str, *sites: str) -> None:
    devices = {}
    for site in sites:
        namespace, _, address = site.partition("=")
        devices[socket.inet_aton(address)] = open_device(namespace, address, int(mtu))
    forwarder = Forwarder(devices, int(mtu), random.Random(int(seed)))
    print("ready", flush=True)
    forwarder.run()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: no forwarder outlives the test that made it
    main(*sys.argv[1:])
