"""A member in a process of its own: `python -m tests.integration.swarm.child FOLDER NUM_BYTES [BOOTSTRAP...]`.

Serves the manifest and a resource `blob`, accepts every payload into a memfd, prints its join address and then one
line per confirmed payload; ends at the end of its standard input.
"""

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.messages import SegmentHeader
from tests.integration.swarm.members import Member, a_manifest, running


class Child(Member):
    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        return Region(self.fd, 0, self.num_bytes)

    async def on_segment(self, peer: PeerId, header: SegmentHeader) -> None:
        print(f"confirmed {header.segment}", flush=True)

    fd = -1
    num_bytes = 0


async def main(folder: Path, num_bytes: int, bootstrap: tuple[str, ...]) -> None:
    child = Child(folder, a_manifest().model_copy(update={"run": RUN_SECTION}), bootstrap=bootstrap)
    child.fd, child.num_bytes = os.memfd_create("inbox"), num_bytes
    os.ftruncate(child.fd, num_bytes)
    async with running(child):
        print(child.swarm.join_address(), flush=True)
        await asyncio.to_thread(sys.stdin.read)


RUN_SECTION = a_manifest().run.model_copy(update={"created": "2026-01-01T00:00:00Z"})

if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:])))
