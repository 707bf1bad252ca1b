"""Who is dialled: everybody known but those that left, or were not heard of for a day (D4)."""

from pathlib import Path

import pytest

from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.discovery.contacts import FORGET_AFTER_MS, Whereabouts
from dilocoxd.swarm.discovery.peers_file import PeersFile
from dilocoxd.swarm.discovery.records import RecordBook, sign_record
from tests.unit.swarm.test_records import NOW_MS, RUN, record_of

ME = PeerId("me")
LATER_MS = NOW_MS + FORGET_AFTER_MS


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> identity.Identity:
    return identity.create(tmp_path_factory.mktemp("other") / "identity.key")


@pytest.fixture
def places(tmp_path: Path) -> Whereabouts:
    return Whereabouts((), RecordBook(ME, RUN), PeersFile(tmp_path / "peers.json"))


def hears(places: Whereabouts, other: identity.Identity, state: str, unix_ms: int) -> None:
    """What the other one says now, and that file and book know of it afterwards."""
    data = sign_record(other, record_of(other.peer_id, state=state, unix_ms=unix_ms, sequence=unix_ms - NOW_MS))
    assert places.book.add(data, unix_ms) is not None
    if state != "left":
        places.file.remember(other.peer_id, ("/ip4/10.0.0.1/tcp/1",), unix_ms, data)


def test_who_has_left_is_dialled_again_only_once_it_says_otherwise(
    places: Whereabouts, other: identity.Identity
) -> None:
    hears(places, other, "training", NOW_MS)
    assert places.to_dial(NOW_MS) == {other.peer_id}
    hears(places, other, "left", NOW_MS + 1)
    assert places.to_dial(NOW_MS + 1) == set()
    hears(places, other, "training", NOW_MS + 2)
    assert places.to_dial(NOW_MS + 2) == {other.peer_id}


@pytest.mark.parametrize("is_in_file", [True, False])
def test_who_was_not_heard_of_for_a_day_is_not_dialled_until_it_is(
    places: Whereabouts, other: identity.Identity, is_in_file: bool
) -> None:
    hears(places, other, "training", NOW_MS)
    if not is_in_file:
        places.file.peers.clear()
    assert places.to_dial(LATER_MS) == {other.peer_id}
    assert places.to_dial(LATER_MS + 1) == set()
    hears(places, other, "training", LATER_MS + 2)
    assert places.to_dial(LATER_MS + 2) == {other.peer_id}


def test_who_is_known_from_the_file_alone_is_dialled_for_a_day(places: Whereabouts) -> None:
    places.file.remember(PeerId("old"), ("/ip4/10.0.0.1/tcp/1",), NOW_MS)
    assert places.to_dial(LATER_MS) == {PeerId("old")} and places.to_dial(LATER_MS + 1) == set()


def test_who_answered_later_than_its_record_says_counts_as_heard_of_then(
    places: Whereabouts, other: identity.Identity
) -> None:
    hears(places, other, "training", NOW_MS)
    places.file.remember(other.peer_id, (), LATER_MS)
    assert places.to_dial(LATER_MS + 1) == {other.peer_id}


def test_restarted_site_dials_again_who_had_left_where_its_file_knows_it(
    places: Whereabouts, other: identity.Identity
) -> None:
    """D4.4: or two that left at the same moment would not find each other."""
    hears(places, other, "training", NOW_MS)
    hears(places, other, "left", NOW_MS + 1)
    assert places.to_dial(NOW_MS + 1) == set()
    places.file.save()
    file = PeersFile(places.file.path)
    assert not file.load()
    assert Whereabouts((), RecordBook(ME, RUN), file).to_dial(NOW_MS + 2) == {other.peer_id}
