"""What is told to a local network, and what is believed of it: forms only, and nothing that drives a terminal."""

import ast
import inspect
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st
from zeroconf import Zeroconf

from dilocoxd.cli.joining.nearby import screen
from dilocoxd.daemon.peers.nearby import tells_lan
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.discovery import lan
from dilocoxd.swarm.discovery.lan import SERVICE, LocalRun, local_ips, read_answer

PEER = PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
RUN = LocalRun(RunId("tiny-0123456789abcdef"), "invite", "attic", PEER, ("192.168.1.5",), 31337)
TOLD: dict[bytes, bytes | None] = {name.encode(): text.encode() for name, text in RUN.properties().items()}


def test_what_is_told_is_read_back_and_holds_no_invite() -> None:
    assert read_answer(TOLD, ["fe80::1", "192.168.1.5"], 31337) == RUN
    assert RUN.address == f"/ip4/192.168.1.5/tcp/31337/p2p/{PEER}"
    assert set(RUN.properties()) == {"run", "admission", "site", "peer"}


@pytest.mark.parametrize(
    "wrong",
    [
        {b"run": b"tiny"}, {b"run": b"\x1b]0;x\x07-0123456789abcdef"}, {b"run": None}, {b"site": b"\x1b[2J"},
        {b"site": "\u202e".encode()}, {b"site": b"a" * 200}, {b"peer": b"Qm"}, {b"peer": b"\xff" * 46},
        {b"admission": b"yours\n"}, {b"admission": b""},
    ],
)  # fmt: skip
def test_answer_with_one_wrong_field_is_dropped(wrong: dict[bytes, bytes | None]) -> None:
    assert read_answer({**TOLD, **wrong}, ["192.168.1.5"], 31337) is None


@pytest.mark.parametrize(
    ("ips", "port"), [([], 31337), (["fe80::1"], 31337), (["192.168.1.5"], 0), (["192.168.1.5"], None)]
)
def test_answer_that_leads_nowhere_is_dropped(ips: list[str], port: int | None) -> None:
    assert read_answer(TOLD, ips, port) is None


@given(st.dictionaries(st.sampled_from(list(TOLD)), st.one_of(st.none(), st.binary(max_size=80))), st.text(max_size=20))
def test_any_answer_is_printable_or_dropped(properties: dict[bytes, bytes | None], ip: str) -> None:
    found = read_answer({**TOLD, **properties}, [ip, "192.168.1.5"], 31337)
    assert found is None or screen([found]).replace("\n", "").isprintable()


class Unheard:
    """The library without a socket: it reads the name as it always does, and would ask the network after that."""

    get_service_info = Zeroconf.get_service_info


@pytest.mark.parametrize("alias", ["foo", "", f"\x1b[2J.{SERVICE}", f"{'a' * 64}.{SERVICE}", "x._http._tcp.local."])
def test_answer_whose_name_is_none_is_passed_over(alias: str) -> None:
    library: Any = Unheard()
    assert lan._asked(library, alias, time.monotonic()) is None


def test_screen_says_how_to_join_each_run_once() -> None:
    is_open = LocalRun(RunId("open-0123456789abcdef"), "open", "", PEER, ("10.0.0.9",), 5)
    other = LocalRun(RUN.run, "invite", "cellar", PEER, ("192.168.1.6",), 31337)
    text = screen([is_open, RUN, other])
    assert f"join open-0123456789abcdef with: dilocoxd join /ip4/10.0.0.9/tcp/5/p2p/{PEER}\n" in text
    assert text.count("to join tiny-0123456789abcdef, ask its operator for a link: dilocoxd invite RUN_DIR") == 1


def test_addresses_for_neighbours_are_those_of_this_machine() -> None:
    told = [f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}", f"/ip4/10.0.0.1/tcp/1/p2p/{PEER}", f"/ip6/::1/tcp/1/p2p/{PEER}",
            f"/ip4/10.0.0.2/tcp/1/p2p/{PEER}/p2p-circuit/p2p/{PEER}"]  # fmt: skip
    assert local_ips(told) == ("10.0.0.1",)


def test_services_stay_silent_unless_told() -> None:
    assert [tells_lan(setting) for setting in ("terminal", "always", "never")] == [False, True, False]


def test_the_library_is_loaded_only_where_it_is_used() -> None:
    tree = ast.parse(inspect.getsource(lan))
    imported = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not any("zeroconf" in line for line in imported)
