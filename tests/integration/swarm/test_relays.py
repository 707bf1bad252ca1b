"""Places at relays: a reachable peer gives one, and whoever has one can be dialled through it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.errors import PeerError
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.p2pd import relays
from dilocoxd.swarm.p2pd.addresses import circuit_through
from dilocoxd.swarm.p2pd.node import Node, fresh_peer_id
from dilocoxd.swarm.p2pd.relays import keep_places, reserve
from dilocoxd.swarm.p2pd.settings import NodeSettings
from dilocoxd.telemetry.alerts import kind_of
from tests.harness.running.run_directories import free_port

pytestmark = pytest.mark.processes


@contextlib.asynccontextmanager
async def node(folder: Path, **changes: Any) -> AsyncIterator[Node]:
    key = identity.load_or_create(folder / "identity.key")
    listen = (f"/ip4/127.0.0.1/tcp/{free_port()}",)
    if changes.get("reachability") == "public":
        changes["announce"] = listen
    settings = NodeSettings(key.path, folder / "p2p", listen, **changes)
    started = Node(settings, lambda data, expiration: key.peer_id, lambda code: None)
    try:
        await started.start()
        yield started
    finally:
        await started.shutdown()


async def test_place_at_a_relay_can_be_dialled_and_missing_places_and_relays_are_named(tmp_path: Path) -> None:
    async with node(tmp_path / "plain") as plain:
        await _through_a_relay(tmp_path, plain)


async def _through_a_relay(folder: Path, plain: Node) -> None:
    async with node(folder / "relay", reachability="public", relay_for_others=True) as relay:
        relay_id = relay.peer_id
        place = (await relay.addresses())[0]
        async with node(folder / "hidden", reachability="private", relays=(place,)) as hidden:
            await reserve(hidden, relay.peer_id, place)
            through = circuit_through(place)
            assert f"{through}/p2p/{hidden.peer_id}" in await hidden.addresses()
            await plain.connect(hidden.peer_id, [through])
            assert hidden.peer_id in await plain.connections()
        with pytest.raises(PeerError, match=r"NO_RESERVATION|no reservation"):
            await plain.connect(fresh_peer_id(), [through])
    # The relay is gone.
    with pytest.raises(PeerError, match=r"connection refused|dial backoff"):
        await reserve(plain, relay_id, place)


@pytest.mark.remedy("alert:no_relay")
async def test_place_is_found_at_a_relay_that_was_told_to_or_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedy = kind_of("no_relay").remedy
    assert "Ask its operator, or name another site that can be reached in network.relays" in remedy
    monkeypatch.setattr(relays, "RETRY_S", 0.05)
    async with node(tmp_path / "refuses", reachability="public") as refuses, node(tmp_path / "hidden") as hidden:
        place = (await refuses.addresses())[0]
        raised: asyncio.Queue[Any] = asyncio.Queue()
        keeping = asyncio.create_task(keep_places(hidden, (place,), raised.put_nowait))
        async with asyncio.timeout(60):
            alert = await raised.get()
        keeping.cancel()
        assert (alert.code, alert.remedy) == ("no_relay", remedy) and place in alert.text
        async with node(tmp_path / "another", reachability="public", relay_for_others=True) as another:
            await reserve(hidden, another.peer_id, (await another.addresses())[0])
    asked = node(tmp_path / "refuses", reachability="public", relay_for_others=True)  # its operator was kind
    async with asked as relay, node(tmp_path / "hidden") as hidden:
        await reserve(hidden, relay.peer_id, (await relay.addresses())[0])


async def test_site_relays_for_nobody_unless_it_was_told_to(tmp_path: Path) -> None:
    async with node(tmp_path / "plain", reachability="public") as plain, node(tmp_path / "stranger") as stranger:
        place = (await plain.addresses())[0]
        with pytest.raises(PeerError, match=r"refuses to relay for us \(status 202\)"):
            await reserve(stranger, plain.peer_id, place)
        with pytest.raises(PeerError, match="protocols not supported"):
            await stranger.open_stream(plain.peer_id, "/ipfs/kad/1.0.0")
