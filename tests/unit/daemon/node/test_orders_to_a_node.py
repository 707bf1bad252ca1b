"""Orders that wait on their way to a node, while the process between moves something large: few, whatever happens."""

import asyncio
from typing import Any

import pytest

from dilocoxd.daemon.workers import errands as module
from dilocoxd.daemon.workers.errands import ALL_MAX, EACH_MAX, Errands
from dilocoxd.daemon.workers.local_server import SEND_QUEUE_MAX
from dilocoxd.errors import WorkerError
from dilocoxd.wire.local.buffers import OUTBOX
from dilocoxd.wire.local.uploads import DONE, PayloadSent, PayloadsMove, SendPayload, UploadKey, UploadWay
from dilocoxd.wire.local.worker import WorkerAlive
from tests.unit.daemon.node.test_uploads import FOREVER_S, NodeOfPart, until

NUM_PEERS = 2 * ALL_MAX // EACH_MAX


def order(peer: int) -> SendPayload:
    return SendPayload(0, f"peer {peer}", OUTBOX, 0, b"x", True)


async def test_attempts_that_are_given_up_one_after_the_other_do_not_fill_the_way_to_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What fills it ends the part."""
    monkeypatch.setattr(module, "SILENCE_S", FOREVER_S)
    said: list[Any] = []
    errands = Errands(said.append)
    for _ in range(4):
        sending = [asyncio.ensure_future(errands.send_payload(order(at % NUM_PEERS))) for at in range(2 * ALL_MAX)]
        await asyncio.sleep(0)
        for task in sending:
            task.cancel()
        await asyncio.wait(sending)
    assert len(said) <= 2 * ALL_MAX < SEND_QUEUE_MAX
    sending = [asyncio.ensure_future(errands.send_payload(order(at))) for at in range(NUM_PEERS)]
    for message in said[:ALL_MAX]:
        errands.on_message(PayloadSent(message.request, "failed", detail="called off"))
    await until(lambda: len(said) == 2 * ALL_MAX + NUM_PEERS)
    for message in said[2 * ALL_MAX :]:
        errands.on_message(PayloadSent(message.request, DONE, num_bytes=1))
    assert {(await each).outcome for each in sending} == {DONE}


async def test_order_that_finds_no_room_waits_as_long_as_payloads_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_MAX", 1)
    monkeypatch.setattr(module, "SILENCE_S", FOREVER_S)
    errands = Errands(lambda message: None)
    first, second = (asyncio.ensure_future(errands.send_payload(order(peer))) for peer in range(2))
    await asyncio.sleep(0)
    monkeypatch.setattr(module, "SILENCE_S", -1.0)
    errands.on_message(PayloadsMove())
    for sending in (first, second):
        with pytest.raises(WorkerError, match="said nothing"):
            await sending


async def test_what_a_node_says_of_payloads_is_no_sign_of_life_of_its_part() -> None:
    """A part that hangs would else be waited for as long as anything is sent."""
    node = NodeOfPart()
    before = node.session.last_sign = node.session.last_sign - 1.0
    for said in (PayloadsMove(), PayloadSent(1, DONE), UploadWay("peer", True, ""), UploadKey(b"x")):
        node.to_head(said)
    assert node.session.last_sign == before
    node.to_head(WorkerAlive("", 0))
    assert node.session.last_sign > before


async def test_who_waits_for_room_hears_that_the_node_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALL_MAX", 1)
    errands = Errands(lambda message: None)
    both = [asyncio.ensure_future(errands.send_payload(order(peer))) for peer in range(2)]
    await asyncio.sleep(0)
    errands.end("its cable was cut")
    for sending in both:
        with pytest.raises(WorkerError, match="cable"):
            await sending
