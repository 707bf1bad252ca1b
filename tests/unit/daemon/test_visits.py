"""Commands about one other site: which one is meant, and which way it is reached."""

import pytest

from dilocoxd.daemon.observe.names import SiteNames
from dilocoxd.daemon.peers.visits import NO_WAY, Visits, times_of, why_silent
from dilocoxd.errors import CommandRefused
from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.discovery.hello import Introduction
from dilocoxd.swarm.p2pd.addresses import multiaddr_bytes
from dilocoxd.swarm.p2pd.connections import address_text, is_only_relayed, is_relayed
from tests.unit.daemon.test_site_names import ALICE, BOB

CAROL = PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")


def visits(**names: str) -> Visits:
    people = {"alice": ALICE, "bob": BOB, "carol": CAROL}
    book = SiteNames("QmMe", "home")
    for person, name in names.items():
        book.learn(people[person], name)
    return Visits(None, book, lambda: [people[person] for person in names], lambda: 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("site", "peer"), [("attic", ALICE), (BOB, BOB), ("~r581Vz", BOB), ("garage~Wjhx5N", CAROL), ("Garage~r581Vz", BOB)]
)
def test_a_site_is_meant_by_its_name_or_id(site: str, peer: str) -> None:
    assert visits(alice="attic", bob="Garage", carol="garage").peer_called(site) == peer


def test_who_is_not_one_site_is_told_the_choices() -> None:
    with pytest.raises(CommandRefused, match=r"no other site is called 'cellar'; known: attic, ~r581Vz$"):
        visits(alice="attic", bob="").peer_called("cellar")
    with pytest.raises(CommandRefused, match=r"2 sites are called 'garage': say which of garage~Wjhx5N, garage~r581Vz"):
        visits(bob="garage", carol="garage").peer_called("garage")
    with pytest.raises(CommandRefused, match=r"known: none"):
        visits().peer_called("attic")


def test_clocks_are_compared_by_the_hello_that_was_under_way_for_the_shortest_time() -> None:
    """Each is off by up to half of its round trip: the last one tells nothing where it stood still somewhere."""
    hellos = [
        Introduction(RunId("r"), 0, clock_offset_s=offset_s, round_trip_s=trip_s, record=b"")
        for offset_s, trip_s in ((2.0, 5.0), (0.25, 0.01), (-5.5, 11.0))
    ]
    assert times_of(hellos) == (0.01, 11.0, 0.25)


def test_a_site_to_which_no_way_is_known_is_told_without_the_tables_of_p2pd() -> None:
    assert why_silent("open /dilocoxd/hello to QmBob: failed to find any peer in table") == NO_WAY
    assert why_silent("QmBob: refused: version") == "QmBob: refused: version"


@pytest.mark.parametrize("site", ["home", "QmMe"])
def test_ones_own_site_is_named_as_such(site: str) -> None:
    with pytest.raises(CommandRefused, match=rf"^'{site}' is this site itself; name another one"):
        visits(alice="attic").peer_called(site)


def test_another_site_may_have_our_name() -> None:
    assert visits(alice="home").peer_called("home") == ALICE


@pytest.mark.parametrize(
    ("address", "is_through_another"),
    [
        ("/ip4/10.0.0.1/tcp/31337", False),
        ("/ip6/2001:db8::7/tcp/80", False),
        ("/dns4/site.example.org/tcp/31337", False),
        (f"/ip4/10.0.0.9/tcp/31337/p2p/{ALICE}/p2p-circuit", True),
    ],
)
def test_connections_are_read_as_p2pd_writes_them(address: str, is_through_another: bool) -> None:
    assert address_text(multiaddr_bytes(address)) == address
    assert is_relayed(address) is is_through_another


def test_a_peer_is_relayed_only_while_no_connection_is_direct() -> None:
    direct, relayed = (multiaddr_bytes(f"/ip4/10.0.0.9/tcp/1{rest}") for rest in ("", f"/p2p/{ALICE}/p2p-circuit"))
    assert [is_only_relayed(ends) for ends in ((), (relayed,), (relayed, direct), (direct,))] == [
        False, True, False, False,
    ]  # fmt: skip


def test_what_is_of_another_protocol_is_read_as_far_as_it_goes() -> None:
    assert address_text(multiaddr_bytes("/ip4/10.0.0.1/tcp/1") + bytes([0xCC, 0x03])) == "/ip4/10.0.0.1/tcp/1/..."
