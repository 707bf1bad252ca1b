"""What the daemon tells the bulk streams: which offers to look at again, and what a peer may hold in part."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.round.transfers import Transfers
from dilocoxd.errors import PeerError
from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.exchange.orders import CancelTransfers, SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, SegmentKey
from dilocoxd.swarm.streams.refusals import Refused
from dilocoxd.wire.messages import SegmentHeader

PEER = PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")


class Sender:
    """Fails as it is told, and remembers what it was told to be new."""

    def __init__(self) -> None:
        self.told_new: list[bool] = []
        self.error: Exception | None = None

    async def send_segment(self, peer: PeerId, *rest: Any, attempts: int, is_new: bool) -> None:
        self.told_new.append(is_new)
        if self.error is not None:
            raise self.error


class Receiver:
    def __init__(self) -> None:
        self.num_looks = 0

    def look_again(self) -> None:
        self.num_looks += 1

    def forget(self, is_over: Callable[[SegmentHeader], bool]) -> None:
        return


class Buffers:
    def fd(self, name: str) -> int:
        return -1


@pytest.fixture
def sender() -> Sender:
    return Sender()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
def transfers(sender: Any, receiver: Any) -> Transfers:
    maps = PayloadMaps({0: ((5, 3),)})
    return Transfers(RunId("test-0123456789abcdef"), Buffers(), maps, (sender, receiver), lambda event: None)


def order(segment: int, round_index: int = 0) -> SendSegment:
    key = SegmentKey(KIND_CONTRIBUTION, RoundIndex(round_index), Attempt(0), 0, segment, PhaseId(1))
    return SendSegment(PEER, key, Digest(bytes(32)))


async def send(transfers: Transfers, one: SendSegment) -> None:
    async with asyncio.TaskGroup() as group:
        transfers.start(one, group)


def test_offers_that_wait_are_looked_at_again_only_when_the_machine_has_moved(
    transfers: Transfers, receiver: Receiver
) -> None:
    for moved_to in [("gathering", 3), *[("exchanging", 3)] * 1000]:
        transfers.look_again(moved_to)
    assert receiver.num_looks == 2


async def test_what_broke_on_its_way_is_offered_before_any_of_it_is_sent_again(
    transfers: Transfers, sender: Sender
) -> None:
    sender.error = PeerError("connection broke")
    await send(transfers, order(0))
    sender.error = Refused(PEER, "not_yet", "no proposal")
    for _ in range(2):
        await send(transfers, order(1))
    sender.error = None
    for segment in (0, 1):
        await send(transfers, order(segment))
    assert sender.told_new == [True, True, True, False, True]


async def test_what_broke_is_forgotten_with_its_attempt(transfers: Transfers, sender: Sender) -> None:
    sender.error = PeerError("connection broke")
    await send(transfers, order(0))
    transfers.cancel(CancelTransfers(RoundIndex(1), Attempt(0)))
    await send(transfers, order(0))
    assert sender.told_new == [True, True]
