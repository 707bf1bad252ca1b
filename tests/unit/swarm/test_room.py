"""Room for streams and half-sent frames: bounded for a peer, a network and all; the least useful gives way."""

import pytest

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.room import RoomLimits, StreamPlace, StreamRoom

LIMITS = RoomLimits(3, 6, 10, 300, 600, 1000)


class World:
    """A room whose streams remember that they were closed."""

    def __init__(self) -> None:
        self.room = StreamRoom(LIMITS)
        self.worth = {"member": 2, "friend": 1}
        self.room.worth = lambda peer: self.worth.get(peer, 0)
        self.closed: list[str] = []

    def enter(self, peer: str, network: str = "") -> StreamPlace:
        return self.room.enter(PeerId(peer), network, lambda: self.closed.append(peer))

    def is_refused(self, peer: str, network: str = "") -> bool:
        before = self.room.num_streams
        try:
            self.room.leave(self.enter(peer, network))
        except WireError as error:
            assert error.code == "too_many_streams"
            assert self.room.num_streams == before
            return True
        return False


def test_each_peer_and_each_network_has_its_part() -> None:
    world = World()
    for _ in range(3):
        world.enter("a", "n1")
    assert world.is_refused("a", "n1")
    assert world.is_refused("a", "n2"), "the peer counts, wherever it comes from"
    for _ in range(3):
        world.enter("b", "n1")
    assert not world.is_refused("c", "n2")
    assert world.is_refused("b", "n1")


def test_last_one_to_leave_leaves_nothing_behind() -> None:
    world = World()
    places = [world.enter(f"p{number}", f"n{number % 3}") for number in range(9)]
    for place in places:
        world.room.grow(place, 50)
    for place in [*places, *places]:
        world.room.leave(place)
    assert (world.room.num_streams, world.room.num_bytes) == (0, 0)
    assert not world.room._streams
    assert not world.room._bytes


def test_who_takes_part_is_let_in_when_strangers_take_all_room() -> None:
    world = World()
    for number in range(10):
        world.enter(f"s{number}", f"n{number}")
    assert world.is_refused("s10", "n10"), "a stranger like the others"
    assert world.closed == []
    for _ in range(3):
        world.enter("member", "m")
    assert len(world.closed) == 3
    assert world.room.num_streams == 10


def test_nobody_gives_way_to_who_is_worth_less() -> None:
    world = World()
    for name in ("friend", "member"):
        for _ in range(3):
            world.enter(name, f"net of {name}")
    world.worth |= {"f2": 1, "m2": 2}
    for name in ("f2", "m2"):
        for _ in range(2):
            world.enter(name, f"net of {name}")
    assert world.is_refused("stranger")
    assert world.closed == []
    world.enter("m2", "net of m2")
    assert world.closed in (["friend"], ["f2"])


def test_crowd_from_one_network_gives_way_to_one_from_another() -> None:
    world = World()
    for number in range(6):
        world.enter(f"s{number}", "crowd")
    for number in range(4):
        world.enter(f"t{number}", f"n{number}")
    world.enter("newcomer", "far")
    assert len(world.closed) == 1
    assert world.closed[0].startswith("s")


def test_half_sent_frames_are_bounded_too() -> None:
    world = World()
    place = world.enter("a", "n1")
    world.room.grow(place, 300)
    with pytest.raises(WireError, match="too_many_bytes"):
        world.room.grow(world.enter("a", "n1"), 1)
    world.room.shrink(place)
    world.room.grow(place, 300)
    world.room.grow(world.enter("b", "n1"), 300)
    with pytest.raises(WireError, match="too_many_bytes"):
        world.room.grow(world.enter("c", "n1"), 1)
    world.room.grow(world.enter("d", "n2"), 300)
    world.room.grow(world.enter("member", "n3"), 200)
    assert len(world.closed) == 1, "one that is worth less gave way"
    assert world.room.num_bytes <= LIMITS.bytes_all


def test_connections_that_rest_give_way_to_streams_of_the_same_peer() -> None:
    """All places of a peer may be data connections without an exchange: its messages must still get through."""
    world = World()
    places = [world.room.enter(PeerId("a"), "n", lambda n=n: world.closed.append(str(n))) for n in range(3)]  # type: ignore[misc]
    for place in (places[1], places[0], places[2]):
        world.room.rest(place)
    world.room.work(places[1])
    world.enter("a", "n")
    assert world.closed == ["0"], "the one that has rested longest, and not the one that works"
    world.enter("a", "n")
    assert world.closed == ["0", "2"]
    assert world.is_refused("a", "n")
    assert world.room.num_streams == 3


def test_connections_that_rest_give_way_to_peers_that_are_worth_as_much() -> None:
    world = World()
    world.worth |= {f"m{number}": 2 for number in range(5)}
    for number in range(5):
        for _ in range(2):
            world.room.rest(world.enter(f"m{number}", f"n{number}"))
    assert world.is_refused("stranger", "far"), "nobody gives way to who is worth less"
    assert world.closed == []
    for _ in range(3):
        world.enter("member", "far")
    assert world.closed == ["m0", "m0", "m1"]


def test_who_is_worth_less_gives_way_before_a_connection_that_rests() -> None:
    world = World()
    for _ in range(3):
        world.room.rest(world.enter("friend", "n"))
    for number in range(7):
        world.enter(f"s{number}", f"n{number}")
    world.enter("member", "m")
    assert len(world.closed) == 1 and world.closed[0].startswith("s")


def test_neighbours_in_a_full_network_get_the_room_of_what_rests() -> None:
    world = World()
    for name in ("a", "b"):
        for _ in range(3):
            world.room.rest(world.enter(name, "n"))
    world.enter("c", "n")
    assert world.closed == ["a"]
    assert world.room.num_streams == 6


def test_place_that_is_over_rests_no_more() -> None:
    world = World()
    place = world.enter("a", "n")
    world.room.leave(place)
    world.room.rest(place)
    assert not place.rested
    assert world.room.num_streams == 0
