"""Who dies is found gone at once, by the word of its host; who only ends connections, or is silent, is not."""

import asyncio
from pathlib import Path

from dilocoxd.ids import PeerId
from tests.unit.swarm.direct.ends import End, two


class Heard:
    """What A is told, with p2pd's word on whether it is connected to B."""

    def __init__(self, end: End, *words: bool) -> None:
        self.words = list(words)
        self.gone: list[PeerId] = []
        self.is_told = asyncio.Event()
        self.is_asked_in_vain = asyncio.Event()
        end.plane.is_connected, end.plane.on_gone = self._is_connected, self._on_gone

    async def _is_connected(self, peer: PeerId) -> bool:
        if len(self.words) > 1:
            return self.words.pop(0)
        self.is_asked_in_vain.set()
        return self.words[0]

    def _on_gone(self, peer: PeerId) -> None:
        self.gone.append(peer)
        self.is_told.set()


def end_connections(of: End) -> None:
    for link in of.accepted:
        link.abort()


def stop_listening(end: End) -> None:
    """As the kernel does it for a dead process: the loop knows nothing of the descriptor any more."""
    for sock in end.listener._sockets:
        asyncio.get_running_loop().remove_reader(sock.fileno())
    end.listener.close()


async def test_who_dies_is_gone_as_soon_as_p2pd_has_lost_it_too(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        heard = Heard(a, True, False)
        stop_listening(b)
        end_connections(b)
        await asyncio.wait_for(heard.is_told.wait(), 20)
        assert heard.gone == [b.identity.peer_id]


async def test_who_ends_its_connections_and_takes_others_is_there(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        heard, before = Heard(a, True, False), b.listener.vestibule.counts["entered"]
        end_connections(b)
        async with asyncio.timeout(20):
            while b.listener.vestibule.counts["entered"] == before or a.plane._looking:
                await asyncio.sleep(0.01)
        assert heard.gone == []


async def test_whom_p2pd_is_connected_to_is_there_whatever_its_data_port_says(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        heard = Heard(a, True)
        stop_listening(b)
        end_connections(b)
        async with asyncio.timeout(20):
            await heard.is_asked_in_vain.wait()
            while a.plane._looking:
                await asyncio.sleep(0.01)
        assert heard.gone == []
