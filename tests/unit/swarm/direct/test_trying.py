"""Which data ports are tried, and when: those that never answer keep nobody from being tried."""

import asyncio
from pathlib import Path

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.plane import TRIES_MAX
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
