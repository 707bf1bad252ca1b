"""Names of sites: what is one, what a host name becomes, and that nobody is taken for somebody else."""

import pytest
from hypothesis import given, strategies as st

from dilocoxd.site_names import NAME_CHARS_MAX, in_words, is_site_name, labels_of, name_of_host, short_id

ALICE = "QmV3nFQT4Rz4oTBvXxPZrp8RV3iQWbyZAgNPJXaLiCe1"
MALLORY = "QmWmyoMoctfbAaiEs2G46gpeUmhqFRDW6KWo64y5r581Vz"
NAMELESS = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


@pytest.mark.parametrize("text", ["", "a", "gpu-box_3.lab", "7", "x" * NAME_CHARS_MAX])
def test_plain_words_are_names(text: str) -> None:
    assert is_site_name(text)


@pytest.mark.parametrize("text", ["x" * 33, "two words", "-a", "a.", "a\nb", "a\x1b[2J", "caf\u00e9", "a\n", "\u202ea"])
def test_what_could_deceive_a_screen_is_no_name(text: str) -> None:
    assert not is_site_name(text)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gpu-1", "gpu-1"),
        ("gpu-1.lan.example", "gpu-1"),
        ("-odd host-", "odd-host"),
        ("b\u00fcro", "b-ro"),
        ("\u4e2d\u6587", ""),
        ("", ""),
        ("x" * 80, "x" * 32),
    ],
)
def test_a_host_name_becomes_a_site_name(host: str, name: str) -> None:
    assert name_of_host(host) == name


@given(st.text(max_size=80))
def test_whatever_the_host_is_called_the_name_is_one(host: str) -> None:
    assert is_site_name(name_of_host(host))


def test_two_sites_of_one_name_are_told_apart() -> None:
    found = labels_of({ALICE: "Home", MALLORY: "home", NAMELESS: ""})
    assert found == {ALICE: "Home~aLiCe1", MALLORY: "home~r581Vz", NAMELESS: "~Wjhx5N"}
    assert labels_of({ALICE: "Home", NAMELESS: ""}) == {ALICE: "Home", NAMELESS: "~Wjhx5N"}


def test_a_sentence_names_sites_and_keeps_addresses() -> None:
    text = f"a proposal of {ALICE}, not {NAMELESS}: /ip4/10.0.0.1/tcp/1/p2p/{ALICE} refused"
    told = in_words(text, lambda peer: "home" if peer == ALICE else short_id(peer))
    assert told == f"a proposal of home, not ~Wjhx5N: /ip4/10.0.0.1/tcp/1/p2p/{ALICE} refused"


def test_hashes_and_words_are_no_peer_ids() -> None:
    text = "entry " + "0f" * 32 + " of run tiny-0123456789abcdef, nothing else"
    assert in_words(text) == text
