"""One end of the benchmark of data connections, in its own process: `... FOLDER ADDRESS PORT`.

Prints its join address. Each line of JSON is an order, each answered by a line: {"meet": address} until payloads travel
on data connections there, {"send": MiB, "by": "data" | "p2pd", "segment_kib": 4096} to the peer that was met, {"cost":
true} for the processor seconds so far, of this process and of its p2pd, {"spent": true} for those of the last sending
alone. Ends at the end of its standard input.
"""

import asyncio
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from dilocoxd.daemon.round.transfers import SENDS_PER_PEER
from dilocoxd.ids import PeerId
from dilocoxd.swarm.p2pd.addresses import parse_address
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.messages import SegmentHeader
from tests.integration.swarm.members import Member, a_manifest, running
from tests.integration.swarm.sites import header_of, memory, until

MANIFEST = a_manifest().model_copy(
    update={"run": a_manifest().run.model_copy(update={"created": "2026-01-01T00:00:00Z"})}
)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class End(Member):
    """Takes every segment; each has its place, which is written over by the next order."""

    fd = -1
    target: PeerId
    orders = 0
    spent_s = 0.0

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        place = Region(self.fd, header.segment * header.segment_bytes, header.segment_bytes)  # all are alike
        os.ftruncate(self.fd, max(os.fstat(self.fd).st_size, place.offset + place.length))
        return place

    async def on_segment(self, peer: PeerId, header: SegmentHeader) -> None:
        return

    async def meet(self, address: str) -> None:
        """Until the data port there answers."""
        place = parse_address(address)
        assert place.peer is not None
        self.target = place.peer
        self.swarm.contacts.add_bootstrap(place)
        data = self.swarm.data
        assert data is not None
        await until(lambda: data.view(self.target).is_data, "data connections")

    async def send(self, mib: int, by: str, segment_bytes: int) -> float:
        """Seconds from the first offer to the last receipt."""
        self.orders += 1
        self.swarm.gate.data = self.swarm.data if by == "data" else None
        gate = asyncio.Semaphore(SENDS_PER_PEER)
        with memory(mib << 20, seed=1) as payload:
            parts = [Region(payload.fd, start, segment_bytes) for start in range(0, mib << 20, segment_bytes)]
            headers = [await self._header(part, number) for number, part in enumerate(parts)]

            async def send(part: Region, header: SegmentHeader) -> None:
                async with gate:
                    await self.swarm.send_segment(self.target, header, part)

            began, cost = time.monotonic(), self.cost_s()
            async with asyncio.TaskGroup() as group:
                for part, header in zip(parts, headers, strict=True):
                    group.create_task(send(part, header))
            elapsed, self.spent_s = time.monotonic() - began, self.cost_s() - cost
            return elapsed

    async def _header(self, part: Region, segment: int) -> SegmentHeader:
        header = await header_of(part, segment=segment)
        return dataclasses.replace(header, run_id=str(self.manifest.run_id), attempt=self.orders)

    def cost_s(self) -> float:
        """Processor seconds of this process and of its p2pd, so far."""
        return sum(_cpu_s(pid) for pid in (os.getpid(), self.swarm.node.p2pd_pid))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def answer(end: End, order: dict[str, Any]) -> float:
    """What an order comes to."""
    if "meet" in order:
        await end.meet(order["meet"])
        return 0.0
    if "send" in order:
        return await end.send(order["send"], order["by"], order.get("segment_kib", 4096) << 10)
    return end.spent_s if "spent" in order else end.cost_s()


async def main(folder: Path, address: str, port: int) -> None:
    end = End(folder, MANIFEST, listen=(f"/ip4/{address}/tcp/{port}",))
    end.fd = os.memfd_create("inbox")
    async with running(end):
        print(end.swarm.addresses()[0], flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await answer(end, json.loads(line)), flush=True)


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
