"""Two sites behind two routers: a relay brings them together, and where the routers allow it they go on without it."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dilocoxd.cli.doctor.findings import FINDINGS, Finding
from dilocoxd.cli.doctor.site import port_map_finding, ways_finding
from dilocoxd.config.addresses import leads_here
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.p2pd.addresses import circuit_through
from dilocoxd.swarm.p2pd.connections import address_text, is_only_relayed, is_relayed
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.swarm.p2pd.relays import reserve
from dilocoxd.swarm.p2pd.settings import NodeSettings
from tests.harness.internet.namespaces import standing_in
from tests.harness.internet.nat import NattedInternet, RouterKind
from tests.harness.internet.port_maps import Way, router
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import FakeView

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PORT = 31337
WITNESSES = ("relay", "w1", "w2", "w3")
"""p2pd believes in an address of its own once four others, of different addresses, have seen it there."""
PUNCH_S = 30.0
STAY_S = 4.0
"""p2pd punches within one round trip of the relayed connection, and tries three times."""
MAP_S = 30.0
"""p2pd asks a router for 10 s at its start; what it was granted is there soon after, on a machine with CPU for both."""
ECHO = "/test/echo"


class Swarm:
    """p2pd at each site, one relay among them."""

    def __init__(self, internet: NattedInternet, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self.internet = internet
        self._folder = folder
        self._stack = stack
        self.nodes: dict[str, Node] = {}

    async def start(self, name: str, listen: str, **changes: object) -> Node:
        key = identity.create(self._folder / name / "identity.key")
        settings = NodeSettings(
            key.path,
            self._folder / name / "p2p",
            (f"/ip4/{listen}/tcp/{PORT}",),
            **changes,  # type: ignore[arg-type]
        )
        node = Node(settings, lambda data, expiration: key.peer_id, lambda code: None)
        with standing_in(self.internet.namespace(name)):
            await node.start()
        self._stack.push_async_callback(node.shutdown)
        self.nodes[name] = node
        return node

    async def ways(self, here: str, there: str) -> list[str]:
        """The remote ends of the connections between two sites."""
        found = (await self.nodes[here].connections()).get(self.nodes[there].peer_id, ())
        return [address_text(data) for data in found]


@contextlib.asynccontextmanager
async def hidden_pair(
    folder: Path, kind: RouterKind, witnesses: tuple[str, ...], *, may_punch: bool = True
) -> AsyncIterator[tuple[Swarm, NattedInternet]]:
    """Sites a and b, each behind a router, which know the witnesses and have just met at the relay."""
    async with contextlib.AsyncExitStack() as stack:
        internet = stack.enter_context(NattedInternet(f"nt{os.getpid() % 10000}", witnesses, "ab", kind))
        swarm = Swarm(internet, folder, stack)
        for name in witnesses:
            own = internet.address(name)
            await swarm.start(
                name, own, announce=(f"/ip4/{own}/tcp/{PORT}",), reachability="public", relay_for_others=name == "relay"
            )
        place = (await swarm.nodes["relay"].addresses())[0]
        for name in "ab":
            node = await swarm.start(name, "0.0.0.0", relays=(place,), reachability="private", hole_punching=may_punch)
            for witness in witnesses:
                other = swarm.nodes[witness]
                await node.connect(other.peer_id, await other.addresses())
            await reserve(node, swarm.nodes["relay"].peer_id, place)
        await asyncio.sleep(STAY_S)  # identify answers come in by themselves, p2pd tells nobody when
        await swarm.nodes["a"].connect(swarm.nodes["b"].peer_id, [circuit_through(place)])
        yield swarm, internet


async def direct(swarm: Swarm) -> list[str]:
    """Direct ways from a to b, once there is one."""
    async with asyncio.timeout(PUNCH_S):
        while not (found := [way for way in await swarm.ways("a", "b") if not is_relayed(way)]):
            await asyncio.sleep(0.2)
        return found


async def echo(swarm: Swarm) -> bytes:
    """A word from a to b and back, on a new stream."""

    async def answer(peer: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        await writer.drain()

    await swarm.nodes["b"].set_handler(ECHO, answer)
    reader, writer = await swarm.nodes["a"].open_stream(swarm.nodes["b"].peer_id, ECHO)
    writer.write(b"hello")
    async with asyncio.timeout(PUNCH_S):
        said = await reader.readexactly(5)
    writer.close()
    return said


async def test_hole_is_punched_through_two_routers_that_keep_ports_and_the_relay_may_go(tmp_path: Path) -> None:
    async with hidden_pair(tmp_path, "keeps ports", WITNESSES) as (swarm, internet):
        assert await direct(swarm) == [f"/ip4/{internet.router_address('b')}/tcp/{PORT}"]
        await swarm.nodes["relay"].shutdown()
        assert await echo(swarm) == b"hello"


@pytest.mark.parametrize(
    ("kind", "witnesses", "may_punch"),
    [("draws ports", WITNESSES, True), ("keeps ports", WITNESSES[:1], True), ("keeps ports", WITNESSES, False)],
    ids=["routers that draw ports", "nobody but the relay", "not allowed"],
)
async def test_relay_carries_what_cannot_go_directly(
    tmp_path: Path, kind: RouterKind, witnesses: tuple[str, ...], may_punch: bool
) -> None:
    async with hidden_pair(tmp_path, kind, witnesses, may_punch=may_punch) as (swarm, _):
        await asyncio.sleep(STAY_S)
        assert is_only_relayed((await swarm.nodes["a"].connections())[swarm.nodes["b"].peer_id])
        assert await echo(swarm) == b"hello"


@pytest.mark.remedy("finding:ways")
async def test_a_forwarded_port_takes_the_place_of_the_relay_as_told(tmp_path: Path) -> None:
    assert "Forward TCP network.port to one of the two sites" in FINDINGS["ways"][1]
    async with hidden_pair(tmp_path, "draws ports", WITNESSES[:1], may_punch=False) as (swarm, internet):
        assert (await finding(swarm)).level == "warning"
        internet.forward("b", PORT)
        a, b = swarm.nodes["a"], swarm.nodes["b"]
        await a.disconnect(b.peer_id)
        await a.connect(b.peer_id, [f"/ip4/{internet.router_address('b')}/tcp/{PORT}"])
        assert (await finding(swarm)).level == "ok"
        await swarm.nodes["relay"].shutdown()
        assert await echo(swarm) == b"hello"


@contextlib.asynccontextmanager
async def behind_a_router(folder: Path) -> AsyncIterator[Swarm]:
    """One site with a public address, and "a" behind a router, not started yet."""
    async with contextlib.AsyncExitStack() as stack:
        internet = stack.enter_context(NattedInternet(f"nm{os.getpid() % 10000}", ("w1",), "a", "keeps ports"))
        swarm = Swarm(internet, folder, stack)
        own = internet.address("w1")
        await swarm.start("w1", own, announce=(f"/ip4/{own}/tcp/{PORT}",), reachability="public")
        yield swarm


async def opened(node: Node) -> list[str]:
    """Addresses of a node that lead to it from everywhere, once it has some."""
    async with asyncio.timeout(MAP_S):
        while not (found := [address for address in await node.addresses() if leads_here(address)]):
            await asyncio.sleep(0.2)
        return found


@pytest.mark.remedy("finding:port_map")
@pytest.mark.parametrize("way", ["NAT-PMP", "UPnP"])
async def test_port_is_opened_by_the_router_that_is_asked_and_others_get_in_there(tmp_path: Path, way: Way) -> None:
    for word in ("Turn on UPnP or NAT-PMP in the router", "start the daemon again", "forward TCP network.port there"):
        assert word in FINDINGS["port_map"][1]
    async with behind_a_router(tmp_path) as swarm:
        a = await swarm.start("a", "0.0.0.0", map_port=True)
        await asyncio.sleep(STAY_S)
        assert port_map_finding(await a.addresses()).level == "warning"
        async with router(swarm.internet, "a", way) as granting:
            with standing_in(swarm.internet.namespace("a")):
                await a.start()
            (address,) = await opened(a)
            assert port_map_finding(await a.addresses()).level == "ok"
            ((outside, inside),) = granting.opened.items()
            assert address == f"/ip4/{granting.outside}/tcp/{outside}/p2p/{a.peer_id}" and inside == PORT
            w1 = swarm.nodes["w1"]
            await w1.connect(a.peer_id, [address])
            assert await swarm.ways("w1", "a") == [address.partition("/p2p/")[0]]


async def test_no_router_is_asked_where_nobody_said_so(tmp_path: Path) -> None:
    async with behind_a_router(tmp_path) as swarm, router(swarm.internet, "a", "UPnP") as idle:
        a = await swarm.start("a", "0.0.0.0")
        await asyncio.sleep(STAY_S)  # one that is to ask does so within a second
        assert idle.asked == [] and not [address for address in await a.addresses() if leads_here(address)]


async def finding(swarm: Swarm) -> Finding:
    """What the doctor at a says about the way to b."""
    peer = FakeView(10).peers()[0]
    is_around = is_only_relayed((await swarm.nodes["a"].connections())[swarm.nodes["b"].peer_id])
    return ways_finding([changed(peer, is_live=True, way="relay" if is_around else "direct")])
