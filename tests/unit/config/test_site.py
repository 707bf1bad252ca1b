"""site.toml: defaults, refusals, round trip."""

import asyncio
import socket
from pathlib import Path

import pytest

from dilocoxd.cli.doctor.site import port_finding
from dilocoxd.config.loading import validated
from dilocoxd.config.site import SiteConfig, in_force, load_site
from dilocoxd.config.site_fit import OUTER_PARTS_MAX
from dilocoxd.errors import ConfigError
from dilocoxd.wire.placement import PARTS_MAX

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
        (
            "network",
            {"bootstrap": ["10.0.0"]},
            "'10.0.0' is neither an IP address nor the name of a machine",
        ),
        ("network", {"bootstrap": ["host:0"]}, "port 0, not 1 to 65535"),
        ("network", {"host": "/ip4/1.2.3.4"}, "network.host = '/ip4/1.2.3.4' is neither an IP address nor"),
        ("network", {"announce": ["/ip4/host/tcp/1"]}, "says ip4, but 'host' is something else"),
        ("network", {"announce": ["/ip4/1.2.3.4/tcp/1/p2p/QmA/p2p-circuit"]}, "no peer id"),
        ("network", {"relays": ["/ip4/10.0.0.1/tcp/31337"]}, "names no peer; append /p2p/"),
        ("network", {"announce": ["/ip4/10.0.0.1/udp/1"]}, "is not TCP, the only transport used here"),
        ("network", {"announce": ["/ip4/10.0.0.1/tcp/99999"]}, "has port 99999, not 1 to 65535"),
        ("parallel", {"backend": "nccl"}, "use gloo with cpu, nccl with cuda"),
        (
            "parallel",
            {"pipeline": 2, "stages": 1},
            "stages = 1 and parallel.pipeline = 2 are one field",
        ),
        ("parallel", {"replicate": 8, "shard": 1024}, "= 8192 processes are more than 4096"),
        ("parallel", {"tensor": 8, "shard": 1024}, "= 8192 processes are more than 4096"),
        ("parallel", {"sequence": True}, "set parallel.tensor to 2 or more, or parallel.sequence to false"),
        ("parallel", {"stages": "2"}, "parallel.pipeline = '2' is wrong: give a whole number"),
    ],
)
def test_wrong_site_is_refused_with_a_remedy(section: str, values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        validated(SiteConfig, {section: values}, source="site.toml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[[nodes]]\nname = "n0"\n',
            "does not list its machines; .*cluster.stages and cluster.outer_parts, and run .dilocoxd node HEAD",
        ),
        ("[parallel]\ntensors = 2\n", "unknown field parallel.tensors; "),
    ],
)
def test_what_is_not_built_says_what_to_do_instead(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_site(path)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("203.0.113.7", "/ip4/203.0.113.7/tcp/4000"),
        ("203.0.113.7:31337", "/ip4/203.0.113.7/tcp/31337"),
        ("head.example", "/dns/head.example/tcp/4000"),
        ("head.example:5", "/dns/head.example/tcp/5"),
        ("2001:db8::1", "/ip6/2001:db8::1/tcp/4000"),
        ("[2001:db8::1]:5", "/ip6/2001:db8::1/tcp/5"),
        ("/dns4/head.example/tcp/6/p2p/QmA", "/dns4/head.example/tcp/6"),
    ],
)
def test_announced_addresses_may_be_written_as_people_do(typed: str, meant: str) -> None:
    site = validated(SiteConfig, {"network": {"announce": [typed], "port": 4000}}, source="site.toml")
    assert site.network.announced == (meant,)


def test_stages_is_another_name_of_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.toml"
    path.write_text("[parallel]\nstages = 2\n")
    assert load_site(path).parallel.pipeline == load_site(path).parallel.stages == 2
    assert "pipeline = 2" in load_site(path).to_toml()
    monkeypatch.setenv("DILOCOXD_PARALLEL__PIPELINE", "3")
    assert load_site(path).parallel.pipeline == 3
    monkeypatch.delenv("DILOCOXD_PARALLEL__PIPELINE")
    monkeypatch.setenv("DILOCOXD_PARALLEL__STAGES", "4")
    assert load_site(path).parallel.pipeline == 4


def test_batch_is_cut_for_a_pipeline_and_where_somebody_asks() -> None:
    def pieces(**fields: object) -> int:
        return validated(SiteConfig, {"parallel": fields}, source="site.toml").parallel.pieces(8)

    assert [pieces(), pieces(shard=2), pieces(pipeline=2), pieces(microbatches=4)] == [1, 1, 8, 4]


DATA = {"data_connections": 8, "data_port": 4000}


@pytest.mark.parametrize(
    ("network", "api", "sentence"),
    [
        ({"port": 4000, **DATA}, {}, "network.data_port = 4000 is network.port too; give one of them another"),
        (DATA, {"port": 4000}, "network.data_port = 4000 is api.port too"),
        ({"port": 8080}, {}, "api.port = 8080 is network.port too"),
        ({"port": 8080, "host": "::"}, {}, "api.port = 8080 is network.port too"),
        ({"port": 8080, "host": "::"}, {"host": "::"}, "api.port = 8080 is network.port too"),
        ({"port": 8080, "host": "::1"}, {"host": "::1"}, "api.port = 8080 is network.port too"),
        ({"port": 8080, "host": "::1"}, {"host": "::"}, "api.port = 8080 is network.port too"),
    ],
)
def test_ports_that_are_one_are_refused(
    network: dict[str, object], api: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "site.toml"
    kept = validated(SiteConfig, {"network": network, "api": api}, source="options")
    path.write_text(kept.to_toml())
    with pytest.raises(ConfigError, match=f"site.toml: {sentence}"):
        load_site(path)
    with pytest.raises(ConfigError, match=sentence):
        in_force(kept)


@pytest.mark.parametrize(
    ("network", "api"),
    [
        (
            {"port": 4000, "data_port": 4000, "data_connections": 0},
            {},
        ),  # nothing listens on it
        ({"port": 8080, "host": "192.0.2.1"}, {}),
        ({"port": 8080}, {"host": "::1"}),
        ({"port": 8080}, {"host": "::"}),  # the API's socket is of IPv6 alone
        ({"port": 8080, "host": "127.0.0.1"}, {"host": "::"}),
        ({"data_connections": 8}, {"port": 0}),
    ],
)
def test_site_whose_ports_do_not_meet_is_not_refused(network: dict[str, object], api: dict[str, object]) -> None:
    assert in_force(validated(SiteConfig, {"network": network, "api": api}, source="options"))


def test_ports_are_compared_as_the_variables_leave_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DILOCOXD_API__PORT", "31337")
    with pytest.raises(ConfigError, match=r"api\.port = 31337 is network\.port too.*\(DILOCOXD_API__PORT in the env"):
        in_force(SiteConfig())
    monkeypatch.setenv("DILOCOXD_API__PORT", "9000")
    kept = validated(SiteConfig, {"network": {"port": 8080}}, source="options")
    assert in_force(kept).api.port == 9000, "what the variable sets apart is not refused"


async def test_api_on_all_of_ipv6_leaves_ipv4_to_others() -> None:
    """Why `listened_on` says so: what asyncio opens for `::`, whatever the system's default is."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "::", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        assert port_finding("port_network", "0.0.0.0", port, is_running=False).level == "ok"
        assert port_finding("port_network", "::", port, is_running=False).level == "error"
    finally:
        server.close()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert port_finding("port_api", "::", port, is_running=False).level == "ok"
        assert port_finding("port_network", "::", port, is_running=False).level == "error"


def test_a_site_has_as_many_outer_parts_as_can_be_placed() -> None:
    assert OUTER_PARTS_MAX == PARTS_MAX
