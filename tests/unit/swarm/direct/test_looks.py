"""What the kernel says of connections reaches who decides; a closed one says nothing, whichever loop runs it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.swarm.direct.kernel import ask, facts_of
from dilocoxd.swarm.direct.looks import HostLooks
from tests.unit.swarm.direct.ends import End, two

MakeLoop = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@contextlib.asynccontextmanager
async def looked_at(folder: Path) -> AsyncIterator[tuple[End, PeerId, HostLooks, list[HostsHeard]]]:
    """(A, B's id, looks of A's that tell into the list, the list); B answers."""
    told: list[HostsHeard] = []
    async with two(folder) as (a, b):
        yield a, b.identity.peer_id, HostLooks(told.append), told


@LOOPS
def test_host_that_answers_is_looked_at_and_nobody_is_told(loop: MakeLoop, tmp_path: Path) -> None:
    async def run() -> None:
        async with looked_at(tmp_path) as (a, b, looks, told):
            links = a.plane._links()
            assert [link.sock for link in links[b]], "the one that rests"
            facts = facts_of(links[b][0].sock)
            assert facts is not None and 0 < facts.link.round_trip_s < 1.0 and facts.link.num_repeats == 0
            assert 0 <= facts.link.heard_s < 60
            assert looks.look(links, Monotonic(0.0))
            assert not told

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@LOOPS
def test_closed_connection_says_nothing(loop: MakeLoop, tmp_path: Path) -> None:
    async def run() -> None:
        async with looked_at(tmp_path) as (a, b, looks, told):
            links = a.plane._links()
            for link in links[b]:
                ask(link.sock)
                link.abort()
            async with asyncio.timeout(20):
                while any(facts_of(link.sock) for link in links[b]):
                    await asyncio.sleep(0.01)
            for link in links[b]:
                ask(link.sock)
            assert not looks.look(links, Monotonic(0.0))
            assert not told

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
