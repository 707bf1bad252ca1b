"""The public address: what peers say is weighed, and one of them alone, honest or not, changes nothing."""

import json

import pytest

from dilocoxd.answers.peers import TriedAddress
from dilocoxd.answers.status import PublicAddress
from dilocoxd.cli.screens.status import outside
from dilocoxd.daemon.peers import outside as module
from dilocoxd.daemon.peers.outside import ASK_AGAIN_S, FORGET_AFTER_S, PEERS_KEPT, OutsideView, OutsideWatch
from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId

HOME = "/ip4/203.0.113.7/tcp/31337"
A, B, C, D = (PeerId(f"Qm{name}") for name in "ABCD")
NET = {A: "198.51.100.0/24", B: "192.0.2.0/24", C: "198.51.100.0/24", D: ""}


def said(address: str = HOME, *, ok: bool = True) -> list[TriedAddress]:
    return [TriedAddress(address=address, ok=ok, error="" if ok else "no answer")]


def view(**words: bool) -> OutsideView:
    made = OutsideView(31337)
    for name, ok in words.items():
        peer = PeerId(f"Qm{name}")
        made.note(peer, NET[peer], said(ok=ok), 0.0)
    return made


def test_peers_in_two_networks_that_got_in_are_believed() -> None:
    assert view(A=True, B=True).reached(1.0) == (HOME,)
    (row,) = view(A=True, B=True, C=False).rows(1.0, [HOME])
    assert outside((row,)) == f"{HOME}, reached by 2 of 3 sites that tried, announced"


@pytest.mark.parametrize("words", [{"A": True}, {"A": True, "C": True}, {"A": True, "D": True}])
def test_one_network_alone_announces_nothing(words: dict[str, bool]) -> None:
    made = view(**words)
    assert made.reached(1.0) == ()
    assert [row.address for row in made.rows(1.0, ())] == [HOME], "it is shown all the same"


def test_an_address_that_half_of_those_who_tried_did_not_reach_is_not_announced() -> None:
    assert view(A=True, B=True, C=False, D=False).reached(1.0) == ()


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/192.168.1.5/tcp/31337", "/ip4/127.0.0.1/tcp/31337", "/ip4/100.64.0.1/tcp/31337",
        "/ip4/203.0.113.7/tcp/22", "/dns4/victim.example/tcp/31337", "/ip4/203.0.113.7/udp/31337", "\x1b[2J", "",
    ],
)  # fmt: skip
def test_nobody_makes_us_announce_another_port_a_name_or_a_private_address(address: str) -> None:
    made = OutsideView(31337)
    for peer in (A, B):
        made.note(peer, NET[peer], said(address), 0.0)
    assert made.reached(1.0) == made.rows(1.0, ()) == ()


def test_old_words_are_asked_for_again_and_forgotten() -> None:
    made = view(A=True, B=True)
    live = [A, B, C, D]
    assert made.to_ask(live, 1.0) == [C], "three fresh words are enough"
    assert made.to_ask(live, ASK_AGAIN_S) == [A, B, C]
    assert made.reached(FORGET_AFTER_S - 1) == (HOME,)
    assert made.reached(FORGET_AFTER_S) == made.rows(FORGET_AFTER_S, ()) == ()


def test_only_the_newest_words_are_kept() -> None:
    made = OutsideView(31337)
    for number in range(2 * PEERS_KEPT):
        made.note(PeerId(f"Qm{number}"), f"{number}", said(), 0.0)
    assert made.rows(1.0, ()) == (
        PublicAddress(address=HOME, num_tried=PEERS_KEPT, num_reached=PEERS_KEPT, is_announced=False),
    )


async def test_watch_asks_and_tells_what_was_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    answers = {A: said(), B: said(), C: None}
    told: list[tuple[str, ...]] = []

    class Enough(Exception):
        """Two looks."""

    async def fetch(peer: PeerId, resource: str, *, bytes_max: int) -> bytes:
        rows = answers[peer]
        if rows is None:
            raise PeerError("busy")
        return json.dumps([{"address": row.address, "ok": row.ok, "error": row.error} for row in rows]).encode()

    def announce(found: tuple[str, ...]) -> None:
        told.append(found)
        if len(told) == 2:
            raise Enough

    with pytest.raises(Enough):
        await OutsideWatch(OutsideView(31337), fetch, lambda: [A, B, C], NET.__getitem__, announce).run()
    assert told == [(HOME,), (HOME,)]
