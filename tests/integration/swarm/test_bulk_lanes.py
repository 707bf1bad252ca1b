"""Lanes of one payload: each sends its share behind its offer and waits for no answer, whatever the others are at."""

import asyncio
from pathlib import Path

import pytest

from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams import bulk
from dilocoxd.swarm.streams.assemblies import EARLY_PIECES_MAX
from dilocoxd.swarm.streams.bulk import BulkSender
from dilocoxd.swarm.streams.pieces import PieceSet
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, FrameStream
from dilocoxd.wire.frames import PIECE_BYTES, FrameKind, split_piece
from dilocoxd.wire.messages import Hello
from tests.integration.swarm.sites import header_of, memory, sites

pytestmark = pytest.mark.processes
WAIT_S = 60.0
PROGRESS_S = 40.0
"""Who waits for what does not come would do so for so long; both against hangs alone."""
NUM_PIECES = 2 * EARLY_PIECES_MAX


class SlowToAnswer:
    """A receiver whose answers are under way until a lane is FINISHED, as over a long link."""

    def __init__(self) -> None:
        self.held = PieceSet(NUM_PIECES)
        self.is_one_finished = asyncio.Event()
        self.finished_with: list[int] = []

    async def serve(self, stream: FrameStream, hello: Hello) -> None:
        await stream.read(FrameKind.OFFER)
        while (frame := await stream.read(FrameKind.PIECE, FrameKind.FINISHED)).kind is FrameKind.PIECE:
            self.held.add(split_piece(frame.payload)[0])
        self.finished_with.append(NUM_PIECES - len(self.held.missing()))
        self.is_one_finished.set()
        await stream.write(FrameKind.HOLDING, self.held.to_bytes())
        is_complete = self.held.is_complete
        await stream.write(FrameKind.RECEIPT, bulk.RECEIPT_COMPLETE if is_complete else bulk.RECEIPT_PARTIAL)


async def test_lane_that_sent_its_share_waits_neither_for_an_answer_nor_for_slower_lanes(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (a, b):
        receiver = SlowToAnswer()
        await b.serve(PROTOCOL_BULK, receiver.serve)
        await a.meet(b)
        a.gate.progress_timeout_s = PROGRESS_S

        async def second_lane_waits(to: PeerId, num_bytes: int) -> None:
            task = asyncio.current_task()
            if task is not None and task.get_name().startswith("bulk lane 1"):
                async with asyncio.timeout(WAIT_S):
                    await receiver.is_one_finished.wait()

        with memory(NUM_PIECES * PIECE_BYTES, seed=1) as source:
            sender = BulkSender(a.gate, second_lane_waits, lanes_max=2)
            await sender.send_segment(b.peer_id, await header_of(source), source, attempts=1)
        assert receiver.finished_with == [EARLY_PIECES_MAX, NUM_PIECES]
