"""Addresses as people write them, and the sentence they get when they write something else."""

import contextlib

import pytest
from hypothesis import given, strategies as st

from dilocoxd.errors import ConfigError
from dilocoxd.swarm.p2pd.addresses import can_reach_others, multiaddr_bytes, parse_address
from dilocoxd.swarm.p2pd.connections import ip_of
from dilocoxd.swarm.p2pd.relays import status_of

PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.mark.parametrize(
    ("text", "host", "port", "peer"),
    [
        (f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}", "203.0.113.7", 31337, PEER),
        (f"/ip6/2001:db8::1/tcp/31337/p2p/{PEER}", "2001:db8::1", 31337, PEER),
        ("/dns4/head.example.org/tcp/80", "head.example.org", 80, None),
        (f"203.0.113.7:31337/{PEER}", "203.0.113.7", 31337, PEER),
        ("head.example.org:31337", "head.example.org", 31337, None),
        ("[2001:db8::1]:31337", "2001:db8::1", 31337, None),
        ("head.example.org", "head.example.org", 31337, None),
        ("203.0.113.7", "203.0.113.7", 31337, None),
    ],
)
def test_every_usual_form_is_understood(text: str, host: str, port: int, peer: str | None) -> None:
    address = parse_address(text)
    assert (address.host, address.port, address.peer, address.text) == (host, port, peer, text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "cannot be understood"),
        ("head example.org", "cannot be understood"),
        ("10.0.0", "neither an IP address nor the name"),
        ("http://head.example.org:80", "cannot be understood"),
        ("host:99999", "port 99999"),
        ("host:0", "port 0"),
        (PEER, "says who but not where"),
        ("/ip4/1.2.3.4/udp/31337/quic-v1", "not TCP"),
        ("host:31337/notapeer", "no peer id"),
        (f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit", "no peer id"),
    ],
)
def test_other_texts_are_explained(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as refused:
        parse_address(text)
    assert "31337" in str(refused.value), "the sentence shows how to write it"


@given(st.text(max_size=80))
def test_any_text_is_an_address_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert 1 <= parse_address(text).port <= 65535


def test_what_other_machines_can_use() -> None:
    assert can_reach_others("/ip4/10.0.0.1/tcp/5")
    assert can_reach_others("/dns4/head.example.org/tcp/5")
    assert not can_reach_others("/ip4/127.0.0.1/tcp/5")
    assert not can_reach_others("/ip4/0.0.0.0/tcp/5")


RELAY = "QmP1xWdBcrMDfmeVsns9SAG8iR1iXtCRaMYD1brjhTr9ji"


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("/ip4/127.0.0.1/tcp/41001", "047f00000106a029"),
        ("/ip6/fd42::1/tcp/1", "29fd42000000000000000000000000000106" + "0001"),
        ("/dns4/a.b/tcp/65535", "3603612e6206ffff"),
        (
            f"/ip4/127.0.0.1/tcp/41001/p2p/{RELAY}/p2p-circuit",
            "047f00000106a029a5032212200a11c7c6e9b2f243d57839e394c4f129e690fa2309a634ef6031d7ac78297c15a202",
        ),
    ],
)
def test_binary_form_of_an_address(text: str, data: str) -> None:
    assert multiaddr_bytes(text).hex() == data


@pytest.mark.parametrize("text", ["/ip4/1.2.3/tcp/1", "/ip4/1.2.3.4/tcp/x", "/unix/x", "/ip4/1.2.3.4/tcp", "/p2p/0O"])
def test_what_is_no_address_has_no_binary_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        multiaddr_bytes(text)


@pytest.mark.parametrize(
    ("message", "status"), [("080228 64", 100), ("0802 28cb01", 203), ("08021a03616263 2864", 100), ("0802", 0)]
)
def test_status_of_a_relay(message: str, status: int) -> None:
    assert status_of(bytes.fromhex(message)) == status


@pytest.mark.parametrize("message", ["08", "1a05ff", "0d00000000", "08ffffffffffffffffffffff"])
def test_broken_answer_of_a_relay(message: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        status_of(bytes.fromhex(message))


@pytest.mark.parametrize(
    ("text", "ip"),
    [
        ("/ip4/203.0.113.7/tcp/31337", "203.0.113.7"),
        ("/ip6/2001:db8::1/tcp/31337", "2001:db8::1"),
        ("/dns4/head.example.org/tcp/80", ""),
        (f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}/p2p-circuit", ""),
    ],
)
def test_ip_of_a_connection_is_that_of_a_direct_one(text: str, ip: str) -> None:
    assert ip_of(multiaddr_bytes(text)) == ip
    assert ip_of(multiaddr_bytes("/ip4/203.0.113.7/tcp/1")[:5] + bytes([0x91, 0x02, 0, 1])) == "", "UDP"
