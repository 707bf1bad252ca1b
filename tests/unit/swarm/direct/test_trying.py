"""Which data ports are tried, and when: those that never answer keep nobody from being tried."""

import asyncio
from pathlib import Path

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.nodes import site_of, way_to_node
from dilocoxd.swarm.direct.plane import TRIES_MAX
from dilocoxd.swarm.direct.routes import Route, in_turn
from dilocoxd.swarm.discovery.identity import create
from tests.unit.swarm.direct.ends import End


class Seeker(End):
    """One whose peers have no address; it notes whose it looked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(create(folder / "a.key"), 8)
        self.tried: list[PeerId] = []
        self.is_enough = asyncio.Event()

    async def _hosts(self, peer: PeerId) -> list[str]:
        self.tried.append(peer)
        if len(self.tried) > 3 * TRIES_MAX:
            self.is_enough.set()
        self.plane._woken.set()  # the next look comes at once
        raise PeerError("nowhere")


async def test_ports_that_never_answer_keep_nobody_from_being_tried(tmp_path: Path) -> None:
    seeker = Seeker(tmp_path)
    deaf, late = [PeerId(f"deaf{number}") for number in range(TRIES_MAX)], PeerId("met last")
    for peer in (*deaf, late):
        seeker.keys[peer] = seeker.identity.public_key_der
        seeker.plane.meet(peer, 1)
        seeker.plane._routes[peer].pause_s = 0.0  # due again before the others are through, as when there are hundreds
    async with asyncio.TaskGroup() as group:
        trying = group.create_task(seeker.plane.run(lambda: {*deaf, late}))
        await seeker.is_enough.wait()
        trying.cancel()
    assert late in seeker.tried
    assert seeker.tried[:TRIES_MAX] == deaf, "who was met first is tried first"


async def test_each_site_has_its_turn_however_many_ports_another_one_names() -> None:
    """Sixteen with dozens of ports that never answer, each try of which takes as long as it may."""
    liars, honest = [PeerId(f"liar{number}") for number in range(16)], PeerId("site")
    ways = [way_to_node(liar, number) for liar in liars for number in range(63)] + [way_to_node(honest, 0)]
    routes = [Route(way, 1, b"", asyncio.Semaphore(1)) for way in ways]
    of_site, now, tried = routes[-1], 0.0, []
    for route in routes[:-1]:
        route.next_try = -1000.0  # all of them are due, and longer than its port
    for _ in range(200):
        under_way = [route for route in routes if route.is_trying]
        for route in in_turn(routes, now)[: TRIES_MAX - len(under_way)]:
            route.is_trying, route.tried_at = True, now
            tried.append(site_of(route.peer))
        now += 1.0
        over = min((route for route in routes if route.is_trying), key=lambda route: route.tried_at)
        over.is_trying, over.next_try, over.pause_s = False, now if over is of_site else now - 1000.0, 0.0
    assert tried.count(honest) >= len(tried) // (len(liars) + 1) - 1
