"""Calls of the DHT that end while their answer is on its way: nothing stays of them, and others are answered."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hivemind.proto import p2pd_pb2

from dilocoxd.swarm.p2pd.node import P2PHandlerError, PeerID  # type: ignore[attr-defined]  # imported slim there
from dilocoxd.swarm.p2pd.peer_ids import id_bytes
from tests.integration.swarm.sites import Site, sites, until

pytestmark = pytest.mark.processes

CALLS = 60
AT_ONCE_S = 0.002
"""Then about half of the calls are taken back before their task has begun."""


def control(site: Site) -> Any:
    return site.node._p2p._client.control


async def take_back(site: Site, victim: Site, name: str) -> None:
    call = asyncio.create_task(control(site).call_unary_handler(PeerID(id_bytes(victim.peer_id)), name, bytes(1000)))
    await asyncio.sleep(AT_ONCE_S)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError, P2PHandlerError):
        await call


async def test_calls_that_are_taken_back_leave_nothing_at_their_callee(tmp_path: Path) -> None:
    async with sites(tmp_path, 2) as (victim, peer):
        await peer.meet(victim)
        name = next(name for name in control(victim).unary_handlers if "find" in name)
        for _ in range(CALLS):
            await take_back(peer, victim, name)
        assert await peer.node.merge_dht(victim.peer_id)
        await until(lambda: not control(victim)._handler_tasks, "nothing is left of the calls")


async def test_answer_to_a_call_that_was_given_up_just_then_harms_no_other(tmp_path: Path) -> None:
    async with sites(tmp_path, 1) as (site,):
        calls, reader, call = control(site)._pending_calls, asyncio.StreamReader(), uuid4()
        calls[call] = asyncio.get_running_loop().create_future()
        calls[call].cancel()  # its task hears of that a moment later
        answer = p2pd_pb2.CallUnaryResponse(response=b"late")
        data = p2pd_pb2.PersistentConnectionResponse(callId=call.bytes, callUnaryResponse=answer).SerializeToString()
        reader.feed_data(bytes([len(data)]) + data)
        reader.feed_eof()
        await control(site)._read_from_persistent_conn(reader)
