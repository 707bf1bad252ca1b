"""Places at relays: a reachable peer gives one, and whoever has one can be dialled through it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.errors import PeerError
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.p2pd.addresses import circuit_through
from dilocoxd.swarm.p2pd.node import Node, fresh_peer_id
from dilocoxd.swarm.p2pd.relays import reserve
from dilocoxd.swarm.p2pd.settings import NodeSettings, fix_ports

pytestmark = pytest.mark.processes


@contextlib.asynccontextmanager
async def node(folder: Path, **changes: Any) -> AsyncIterator[Node]:
    key = identity.create(folder / "identity.key")
    listen = fix_ports(("/ip4/127.0.0.1/tcp/0",))
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


async def test_site_relays_for_nobody_unless_it_was_told_to(tmp_path: Path) -> None:
    async with node(tmp_path / "plain", reachability="public") as plain, node(tmp_path / "stranger") as stranger:
        place = (await plain.addresses())[0]
        with pytest.raises(PeerError, match=r"refuses to relay for us \(status 202\)"):
            await reserve(stranger, plain.peer_id, place)
        with pytest.raises(PeerError, match="protocols not supported"):
            await stranger.open_stream(plain.peer_id, "/ipfs/kad/1.0.0")
