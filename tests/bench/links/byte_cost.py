"""What a byte on data connections costs each end: two processes over loopback, without p2pd and without a link's limit.

`python -m tests.bench.links.byte_cost [--segments-kib 4096,256] [--mib 64] [--repetitions 6]`: CPU-seconds of 10^9
bytes at each end, medians over the repetitions behind a first transfer, which opens the connections. What comes goes
where an outer worker has it: into memory that cannot shrink.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop

from dilocoxd.daemon.round.transfers import SENDS_PER_PEER
from dilocoxd.daemon.workers.buffers import Buffers
from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery.identity import create
from dilocoxd.swarm.streams.bulk import BulkReceiver, BulkSender
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.local.buffers import Buffer
from dilocoxd.wire.messages import SegmentHeader
from tests.bench import end_when_told
from tests.integration.swarm.sites import header_of, memory
from tests.unit.swarm.direct.ends import RUN, End

MOST = 8


def cpu_s() -> float:
    """Of this process, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def told(end: End) -> str:
    """A line by which the other end meets this one."""
    return json.dumps([end.identity.peer_id, end.identity.public_key_der.hex(), end.listener.port])


def meet(end: End, line: str) -> PeerId:
    """The one that wrote this line."""
    peer, key, port = json.loads(line)
    end.keys[peer] = bytes.fromhex(key)
    end.plane.meet(peer, port)
    return PeerId(peer)


async def receive(folder: Path, num_bytes: int) -> None:
    """The receiver: its line, then that of the sender, then an answer to each line: what it has cost so far."""
    end, buffers = End(create(folder / "receiver.key"), MOST), Buffers()
    buffers.provide([Buffer("inbox", num_bytes)])
    fd = buffers.fd("inbox")

    def accept(peer: PeerId, header: SegmentHeader) -> Region:
        return Region(fd, header.segment * header.segment_bytes, header.segment_bytes)  # all are alike

    async def on_received(peer: PeerId, header: SegmentHeader) -> None:
        return

    end.answer = BulkReceiver(accept, on_received).serve
    print(told(end), flush=True)
    known = {meet(end, sys.stdin.readline())}
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(end.plane.run(lambda: known))
        while await asyncio.to_thread(sys.stdin.readline):
            print(cpu_s(), flush=True)
        serving.cancel()
    buffers.close()


async def segments_of(payload: Region, length: int) -> list[tuple[Region, SegmentHeader]]:
    """The payload in segments, with what is said of each."""
    parts = [Region(payload.fd, start, length) for start in range(0, payload.length, length)]
    headers = [await header_of(part, segment=number) for number, part in enumerate(parts)]
    return [(part, dataclasses.replace(header, run_id=str(RUN))) for part, header in zip(parts, headers, strict=True)]


async def send(end: End, peer: PeerId, parts: Sequence[tuple[Region, SegmentHeader]], order: int) -> None:
    """All of it, as a round sends it."""
    sender, gate = BulkSender(end.gate), asyncio.Semaphore(SENDS_PER_PEER)

    async def one(part: Region, header: SegmentHeader) -> None:
        async with gate:
            await sender.send_segment(peer, dataclasses.replace(header, attempt=order), part)

    async with asyncio.TaskGroup() as group:
        for part, header in parts:
            group.create_task(one(part, header))


class Receiver:
    """The process at the other end; a context manager."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        command = [sys.executable, "-m", "tests.bench.links.byte_cost", "--receive", str(folder), str(num_bytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line = self._read()

    def __enter__(self) -> "Receiver":
        return self

    def __exit__(self, *reason: object) -> None:
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the receiver ended"
        return line

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def cpu_s(self) -> float:
        """Of it, so far."""
        self.say("cost")
        return float(self._read())


async def measured(folder: Path, mib: int, segments_kib: Sequence[int], repetitions: int) -> None:
    """Print a row for each length of segments."""
    end = End(create(folder / "sender.key"), MOST)
    with memory(mib << 20, seed=1) as payload, Receiver(folder, mib << 20) as receiver:
        receiver.say(told(end))
        peer = meet(end, receiver.line)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(end.plane.run(lambda: {peer}))
            async with asyncio.timeout(60):
                while not end.plane.view(peer).is_data:
                    await asyncio.sleep(0.01)
            for kib in segments_kib:
                parts, found = await segments_of(payload, kib << 10), []
                for order in range(1 + repetitions):
                    before = cpu_s(), receiver.cpu_s()
                    await send(end, peer, parts, order)
                    found.append(((cpu_s() - before[0]), (receiver.cpu_s() - before[1])))
                print(json.dumps(row(kib, mib, found[1:])), flush=True)
            serving.cancel()


def row(kib: int, mib: int, found: Sequence[tuple[float, float]]) -> dict[str, object]:
    """A line of the table."""
    sender, receiver = ([round(spent / (mib * 1048576e-9), 2) for spent in ends] for ends in zip(*found, strict=True))
    return {
        "segment": f"{kib} KiB",
        "sender": round(statistics.median(sender), 2),
        "receiver": round(statistics.median(receiver), 2),
        "receiver, least": min(receiver),
        "receiver, most": max(receiver),
        "load_1min": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.links.byte_cost", description=__doc__)
    parser.add_argument("--segments-kib", default="4096,256")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--receive", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        uvloop.run(receive(Path(options.receive[0]), int(options.receive[1])))
        return
    segments_kib = [int(text) for text in options.segments_kib.split(",")]
    if any(kib <= 0 or 1024 * options.mib % kib for kib in segments_kib):
        parser.error(f"--mib {options.mib} is no whole number of segments of {options.segments_kib} KiB")
    with tempfile.TemporaryDirectory() as folder:
        uvloop.run(measured(Path(folder), options.mib, segments_kib, options.repetitions))


if __name__ == "__main__":
    end_when_told()
    main()
