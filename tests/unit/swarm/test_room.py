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
