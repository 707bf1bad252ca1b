"""site.toml: defaults, refusals, round trip."""

from pathlib import Path

import pytest

from dilocoxd.config.loading import validated
from dilocoxd.config.site import SiteConfig, address_problem, load_site
from dilocoxd.errors import ConfigError

PEER = "/ip4/10.0.0.1/tcp/31337/p2p/QmPeer"


def test_empty_file_is_a_complete_site(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text("")
    site = load_site(path)
    assert site == SiteConfig()
    path.write_text(site.to_toml())
    assert load_site(path) == site


def test_lists_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    site = validated(
        SiteConfig, {"network": {"bootstrap": [PEER], "announce": ["/dns/a.example/tcp/1"]}}, source="site.toml"
    )
    path.write_text(site.to_toml())
    assert load_site(path).network.bootstrap == (PEER,)


@pytest.mark.parametrize(
    ("section", "values", "sentence"),
    [
        ("network", {"port": 0}, "network.port = 0 is wrong: give a value of at least 1"),
        ("network", {"prot": 1}, r"unknown field network.prot; did you mean network.port\?"),
        ("network", {"bootstrap": "x"}, "network.bootstrap = 'x' is wrong: give a list in brackets"),
        ("network", {"bootstrap": ["10.0.0.1"]}, "must look like /ip4/"),
        ("network", {"bootstrap": ["host:0"]}, "port '0' is not between 1 and 65535"),
        ("network", {"relays": ["/ip4/10.0.0.1/tcp/31337"]}, "names no peer; append /p2p/"),
        ("network", {"announce": ["/ip4/10.0.0.1/udp/1"]}, "only tcp is supported, not udp"),
        ("network", {"announce": ["/ip4/10.0.0.1/tcp/99999"]}, "port '99999' is not between 1 and 65535"),
        ("parallel", {"backend": "nccl"}, "use gloo with cpu, nccl with cuda"),
        ("parallel", {"stages": "2"}, "parallel.stages = '2' is wrong: give a whole number"),
    ],
)
def test_wrong_site_is_refused_with_a_remedy(section: str, values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        validated(SiteConfig, {section: values}, source="site.toml")


def test_addresses_that_can_be_used() -> None:
    for text in (PEER, "/ip6/::1/tcp/1", "/dns4/host.example/tcp/65535/p2p/Qm", "host:1/Qm", "[::1]:31337"):
        assert address_problem(text) is None
