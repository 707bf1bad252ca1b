"""site.toml's [network] reaches the guard and p2pd."""

from pathlib import Path

import pytest

from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import NetworkSection, SiteConfig
from dilocoxd.daemon.settings import allowed_peers, swarm_settings
from dilocoxd.errors import ConfigError
from dilocoxd.ids import PeerId
from dilocoxd.store.rundir import RunDir
from dilocoxd.swarm.direct.links import DataLink
from dilocoxd.swarm.direct.opening import open_data_plane
from dilocoxd.swarm.discovery import identity

FRIEND = "QmV3nFQT4Rz4mq9KbBqZzNnQKp1Zy2a1Yx8KZAgNPJX42n"


async def no_hosts(peer: PeerId) -> list[str]:
    return []


async def serve(peer: PeerId, protocol: str, link: DataLink, network: str) -> None:
    raise AssertionError("nobody comes")


def test_allow_list_and_relaying_are_what_the_operator_said(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    manifest = manifest_from_tables({**preset_tables("tiny"), "admission": {"mode": "open"}}, source="tiny")
    key = identity.create(folder / "identity.key")
    default = swarm_settings(RunDir(folder), manifest, SiteConfig(), key)
    assert default.allowed_peers is None
    assert not default.relay_for_others
    network = NetworkSection(peers_allowed=(FRIEND,), relay_for_others=True)
    told = swarm_settings(RunDir(folder), manifest, SiteConfig(network=network), key)
    assert told.allowed_peers == {FRIEND}
    assert told.relay_for_others


async def test_data_port_is_on_the_address_of_network_host(tmp_path: Path) -> None:
    manifest = manifest_from_tables({**preset_tables("tiny"), "admission": {"mode": "open"}}, source="tiny")
    key = identity.create(tmp_path / "identity.key")
    network = NetworkSection(host="127.0.0.2", data_connections=1)
    settings = swarm_settings(RunDir(tmp_path), manifest, SiteConfig(network=network), key)
    plane = open_data_plane(settings, no_hosts, lambda peer: b"", serve)
    assert plane is not None
    try:
        assert [one.getsockname() for one in plane.listener._sockets] == [("127.0.0.2", plane.port)]
    finally:
        plane.listener.close()


def test_closed_run_lets_in_nobody_but_its_list(tmp_path: Path) -> None:
    manifest = manifest_from_tables({**preset_tables("tiny"), "admission": {"mode": "closed"}}, source="tiny")
    assert allowed_peers(manifest, SiteConfig()) == frozenset()
    network = NetworkSection(peers_allowed=(FRIEND,))
    assert allowed_peers(manifest, SiteConfig(network=network)) == {FRIEND}


def test_daemon_of_an_invite_run_needs_a_membership_of_its_own(tmp_path: Path) -> None:
    manifest = manifest_from_tables({**preset_tables("tiny"), "admission": {"authorities": ["ab" * 32]}}, source="tiny")
    key = identity.create(tmp_path / "identity.key")
    with pytest.raises(
        ConfigError, match=r"no member of the run; join it with a link .* --set admission\.authorities="
    ):
        swarm_settings(RunDir(tmp_path), manifest, SiteConfig(), key)


def test_what_is_no_peer_id_is_refused() -> None:
    with pytest.raises(ValueError, match=r"network\.peers_allowed: 'alice' is no peer id; write it as `dilocoxd id`"):
        NetworkSection(peers_allowed=("alice",))
