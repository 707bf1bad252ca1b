"""Options and --set become configuration; addresses for others are right."""

import re
import socket
from pathlib import Path

import pytest

from dilocoxd.cli.commands import new_manifest
from dilocoxd.cli.overrides import join_address, parse_setting, site_tables, split_settings, warn_of_address
from dilocoxd.config.loading import validated
from dilocoxd.config.site import SiteConfig
from dilocoxd.daemon.settings import listen_addresses
from dilocoxd.errors import ConfigError


def site(**options: object) -> SiteConfig:
    return validated(SiteConfig, site_tables(options, {}), source="options")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("outer.lr=0.5", 0.5),
        ("outer.lr = 1", 1),
        ("outer.lr=fast", "fast"),
        ("outer.lr=[1, 2]", [1, 2]),
        ('outer.lr="1"', "1"),
        ("outer.lr=a=b", "a=b"),
    ],
)
def test_setting_is_toml_or_text(text: str, value: object) -> None:
    assert parse_setting(text) == ("outer", "lr", value)


@pytest.mark.parametrize("text", ["outer.lr", "lr=1", ".lr=1", "outer.=1", ""])
def test_setting_that_names_no_field_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"SECTION\.FIELD=VALUE"):
        parse_setting(text)


def test_settings_go_to_the_file_they_belong_to() -> None:
    assert split_settings(["outer.lr=0.5", "network.port=7", "inner.lr=1e-3", "outer.momentum=0.0"]) == (
        {"outer": {"lr": 0.5, "momentum": 0.0}, "inner": {"lr": 1e-3}},
        {"network": {"port": 7}},
    )


def test_preset_with_changes_is_another_run() -> None:
    manifest = new_manifest("tiny", {"strategy": {"inner_steps": 3}, "run": {"created": "2026-01-01"}})
    assert manifest.strategy.inner_steps == 3
    assert manifest.run.created == "2026-01-01"
    assert manifest.run_id != new_manifest("tiny", {"run": {"created": "2026-01-01"}}).run_id
    with pytest.raises(ConfigError, match=r"preset tiny: unknown field strategy\.inner_step; did you mean"):
        new_manifest("tiny", {"strategy": {"inner_step": 3}})
    with pytest.raises(ConfigError, match="there is no preset and no file 'tinny'"):
        new_manifest("tinny", {})


def test_short_options_fill_site_toml() -> None:
    made = site(port=5, api_port=6, stages=2, announce=("/ip4/1.2.3.4/tcp/5",), device="cuda", host=None)
    assert (made.network.port, made.api.port, made.parallel.stages) == (5, 6, 2)
    assert made.network.announce == ("/ip4/1.2.3.4/tcp/5",)
    assert (made.parallel.device, made.parallel.backend) == ("cuda", "nccl")


def test_port_0_is_a_port_that_can_be_listened_on() -> None:
    made = site(port=0, host="127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", made.network.port))
    with pytest.raises(ConfigError, match="give an address of this machine"):
        site(port=0, host="192.0.2.1")


def test_join_address_prefers_what_is_announced() -> None:
    assert join_address(site(host="127.0.0.1", port=5), "QmA") == "/ip4/127.0.0.1/tcp/5/p2p/QmA"
    assert join_address(site(host="::1", port=5), "QmA") == "/ip6/::1/tcp/5/p2p/QmA"
    announced = site(announce=("/dns/a.example/tcp/7/p2p/QmA", "/ip4/1.2.3.4/tcp/8"), port=5)
    assert join_address(announced, "QmA") == "/dns/a.example/tcp/7/p2p/QmA"
    assert "0.0.0.0" not in join_address(site(port=5), "QmA")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/ip4/192.168.1.5/tcp/31337/p2p/QmA", "192.168.1.5, is of a private network"),
        ("10.0.0.1:5", "10.0.0.1, is of a private network: .* forward its TCP port 5$"),
        ("172.31.0.1:5", "is of a private network"),
        ("[fd42::1]:5", "is of a private network"),
        ("100.64.0.1:5", "is of a provider's or a VPN's own network"),
        ("169.254.0.1:5", "is of a single link"),
        ("[fe80::1]:5", "is of a single link"),
        ("[::ffff:10.0.0.1]:5", "is of a private network"),
        ("127.0.0.1:5", "means this machine alone"),
        ("203.0.113.7:5", ""),
        ("172.32.0.1:5", ""),
        ("[2001:db8::1]:5", ""),
        ("head.example.org:5", ""),
    ],
)
def test_link_that_does_not_lead_here_from_everywhere_is_warned_about(
    address: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn_of_address(address)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == (words != ""), "one sentence"
    assert re.search(words, printed.err.strip())


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", {"host": "127.0.0.1"}),
        ("localhost", {"host": "localhost"}),
        ("127.0.0.1:4000", {"host": "127.0.0.1", "port": 4000}),
        ("[::1]:4000", {"host": "::1", "port": 4000}),
        ("/ip4/127.0.0.1/tcp/4000", {"host": "127.0.0.1", "port": 4000}),
    ],
)
def test_host_may_be_written_as_people_do(host: str, network: dict[str, object]) -> None:
    assert site_tables({"host": host}, {})["network"] == network


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"host": "127.0.0.1:4000", "port": 5000}, "names port 4000, --port 5000; leave one of them out"),
        ({"host": "http://x"}, "--host: address 'http://x' cannot be understood; write it as 203.0.113.7"),
        ({"host": "no.such.host.invalid", "port": 0}, "has no address .*; give an IP address of this machine"),
    ],
)
def test_host_that_makes_no_sense_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        site_tables(options, {})


def test_name_of_this_machine_is_listened_on_and_told_by_its_address() -> None:
    assert join_address(site(host="localhost", port=5), "QmA") == "/ip4/127.0.0.1/tcp/5/p2p/QmA"
    assert listen_addresses("localhost", 5) == ("/ip4/127.0.0.1/tcp/5",)


def test_a_larger_model_in_a_preset_chooses_its_own_segments() -> None:
    large = {"hidden_size": 2048, "intermediate_size": 8192, "num_layers": 24}
    for preset in ("tiny", "demo", "tiny:arrival-int4"):
        made = new_manifest(preset, {"model": large})
        assert made.strategy.segment_elements_max >= 1 << 20
        named = new_manifest(preset, {"model": large, "strategy": {"segment_elements_max": 65536}})
        assert named.strategy.segment_elements_max == 65536
    assert new_manifest("tiny", {}).strategy.segment_elements_max == 16384
    assert new_manifest("tiny", {"model": {"num_layers": 1}}).strategy.segment_elements_max == 16384


def test_what_is_wrong_is_said_of_the_preset_or_the_file_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "other.toml"):
        Path(name).write_text(new_manifest("tiny", {}).to_toml())
    for target, source in (
        ("tiny", "preset tiny"),
        ("tiny:diloco", "preset tiny:diloco"),
        ("other.toml", "other.toml"),
    ):
        with pytest.raises(ConfigError, match=f"^{source}: .*num_layers"):
            new_manifest(target, {"model": {"num_layers": 0}})
    of_file = new_manifest("other.toml", {"model": {"num_layers": 200, "hidden_size": 256}})
    assert of_file.strategy.segment_elements_max == 16384, "a file names the number for its own model"
