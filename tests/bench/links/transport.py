"""Bulk transfer of two sites on loopback: `python -m tests.bench.links.transport [MIB] [LANES...]`, prints MB/s."""

import resource
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.bulk import BulkReceiver, BulkSender
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK
from dilocoxd.wire.messages import SegmentHeader
from tests.bench import end_when_told
from tests.integration.swarm.sites import header_of, memory, sites


async def main(num_mib: int, lane_counts: list[int]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        memory(num_mib << 20, seed=1) as source,
        memory(num_mib << 20) as target,
    ):

        def accept(peer: PeerId, header: SegmentHeader) -> Region:
            return target

        async def on_received(peer: PeerId, header: SegmentHeader) -> None:
            return

        async with sites(Path(folder), 2) as (a, b):
            await b.serve(PROTOCOL_BULK, BulkReceiver(accept, on_received).serve)
            await a.meet(b)
            for number, lanes in enumerate(lane_counts):
                header = await header_of(source, segment=number)
                started, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
                await BulkSender(a.gate, lanes_max=lanes).send_segment(b.peer_id, header, source)
                seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
                used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
                rate = source.length / seconds / 1e6
                print(f"{num_mib} MiB, {lanes} lanes: {rate:.0f} MB/s, python {used:.2f} CPU-s (both ends)")


if __name__ == "__main__":
    end_when_told()
    numbers = [int(text) for text in sys.argv[1:]]
    uvloop.run(main(numbers[0] if numbers else 200, numbers[1:] or [1, 4, 4]))
