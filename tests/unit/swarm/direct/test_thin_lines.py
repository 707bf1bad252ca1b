"""A thin line has few connections written at a time: else no piece is whole within the time that its frame has (S3)."""

import asyncio
from pathlib import Path

import pytest

from dilocoxd.swarm.streams.bulk import BulkSender
from dilocoxd.swarm.streams.ends import FRAME_BYTES_PER_S_MIN
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import PROGRESS_TIMEOUT_S
from dilocoxd.swarm.streams.throttle import LINES_UNKNOWN, Writers
from dilocoxd.wire.frames import PIECE_BYTES
from tests.unit.swarm.direct.ends import two
from tests.unit.swarm.direct.test_turns import Receiver, payload, send, until_written

__all__ = ["payload"]
MOST = 8
FRAME_S = PROGRESS_TIMEOUT_S + PIECE_BYTES / FRAME_BYTES_PER_S_MIN


def fitted(bytes_per_s: float) -> Writers:
    writers = Writers(MOST)
    writers.fit(bytes_per_s)
    return writers


@pytest.mark.parametrize("bytes_per_s", [20e3, 100e3, 150e3, 250e3, 1e6, 1e8])
def test_pieces_of_all_that_are_written_come_whole_in_time(bytes_per_s: float) -> None:
    num = fitted(bytes_per_s).num
    assert num == 1 or num * PIECE_BYTES / bytes_per_s < 0.6 * FRAME_S
    assert num == MOST or (num + 1) * PIECE_BYTES / bytes_per_s > 0.5 * FRAME_S, "no fewer than that"


def test_speed_that_nobody_knows_yet_lets_few_in_and_failures_fewer() -> None:
    writers = fitted(0.0)
    assert writers.num == LINES_UNKNOWN
    writers.fit(1e8)
    assert writers.num == MOST
    for expected in (4, 2, 1, 1):
        writers.shrink()
        assert writers.num == expected
    for expected in (2, 3, 4, 5, 6, 7, 8, 8):
        writers.grow()
        assert writers.num == expected


async def test_who_is_called_off_while_it_waits_or_as_it_is_let_in_takes_no_place() -> None:
    writers = fitted(1.0)
    await writers.acquire()
    gone, going, let_in, last = (asyncio.create_task(writers.acquire()) for _ in range(4))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    going.cancel()
    writers.release()  # before the one that is called off has run
    let_in.cancel()  # its turn has come, and it has not run since
    await asyncio.gather(going, let_in, return_exceptions=True)
    async with asyncio.timeout(60):
        await last
    writers.release()
    async with asyncio.timeout(60):
        await writers.acquire()


async def test_payloads_of_a_thin_line_are_written_behind_each_other_on_one_connection(
    tmp_path: Path, payload: Region
) -> None:
    async with two(tmp_path, MOST) as (a, b):
        receiver, sender = Receiver(b), BulkSender(a.gate)
        a.plane.speed_to = lambda peer: 20e3
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(send(sender, b, segment, payload)) for segment in range(3)]
            await until_written(sender, 3, payload)
            for _ in range(3):
                receiver.answers.release()
        assert [task.result() for task in sent] == ["", "", ""]
        assert (a.plane.counts["links_opened"], a.plane.counts["links_shared"]) == (1, 2)
        assert not a.node.num_asked


async def test_payload_waits_for_a_thin_line_as_long_as_those_before_it_move(tmp_path: Path, payload: Region) -> None:
    """p2pd would go by the same line."""
    async with two(tmp_path, MOST) as (a, b):
        receiver, sender = Receiver(b), BulkSender(a.gate)
        a.plane.speed_to, a.plane.slot_wait_s = (lambda peer: 20e3), 0.0
        route = a.plane._routes[b.identity.peer_id]
        writers = a.plane._writers(route)
        assert writers is not None
        await writers.acquire()
        async with asyncio.TaskGroup() as group:
            sent = group.create_task(send(sender, b, 0, payload))
            async with asyncio.timeout(60):
                while not writers._waiting:
                    await asyncio.sleep(0.01)
            assert not sent.done() and not a.node.num_asked
            writers.release()
            receiver.answers.release()
        assert sent.result() == ""
