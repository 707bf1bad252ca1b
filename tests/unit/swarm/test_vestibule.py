"""Who waits between accept and the end of the handshake. S11."""

from dilocoxd.swarm.direct.vestibule import (
    EACH,
    KNOWN_MAX,
    NETWORK,
    PLACES_ADDRESS,
    PLACES_ALL,
    PLACES_NETWORK,
    TOTAL,
    Vestibule,
    Visitor,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def visitors(ips: list[str], gone: list[str]) -> list[Visitor]:
    return [Visitor(ip, lambda ip=ip: gone.append(ip)) for ip in ips]  # type: ignore[misc]


def test_one_address_fills_only_its_own_places_and_its_oldest_gives_way() -> None:
    vestibule, gone = Vestibule(Clock()), list[str]()
    (other,) = visitors(["198.51.100.7"], gone)
    assert vestibule.enter(other)
    for visitor in visitors(["203.0.113.9"] * (2 * PLACES_ADDRESS), gone):
        assert vestibule.enter(visitor)
    assert len(vestibule) == PLACES_ADDRESS + 1
    assert gone == ["203.0.113.9"] * PLACES_ADDRESS, "nobody else gave way"
    vestibule.leave(other)
    vestibule.leave(other)
    assert len(vestibule) == PLACES_ADDRESS


def test_one_network_and_all_together_have_their_places() -> None:
    vestibule, gone = Vestibule(Clock()), list[str]()
    for visitor in visitors([f"203.0.113.{number}" for number in range(1, PLACES_NETWORK + 11)], gone):
        assert vestibule.enter(visitor)
    assert len(vestibule) == PLACES_NETWORK
    for visitor in visitors([f"10.{number}.0.1" for number in range(PLACES_ALL)], gone):
        assert vestibule.enter(visitor)
    assert len(vestibule) == PLACES_ALL
    assert vestibule.counts["gave_way"] == len(gone) == 10 + PLACES_NETWORK


def test_handshakes_beyond_the_budget_are_not_begun() -> None:
    clock, gone = Clock(), list[str]()
    vestibule = Vestibule(clock)
    entered = [vestibule.enter(visitor) for visitor in visitors(["203.0.113.9"] * 500, gone)]
    assert sum(entered) == EACH.burst
    assert vestibule.counts["over_budget"] == 500 - EACH.burst
    clock.now = 2.0
    again = [vestibule.enter(visitor) for visitor in visitors(["203.0.113.9"] * 500, gone)]
    assert sum(again) == 2 * EACH.per_s


def crowd(vestibule: Vestibule) -> int:
    """Three networks of strangers that come as often as their networks may; how many of them are let in."""
    ips = [f"203.0.{network}.{host}" for host in range(20) for network in range(3)]
    found = visitors(ips * int(TOTAL.burst / len(ips) + 1), [])
    return sum(vestibule.enter(visitor) for visitor in found)


def test_three_networks_of_strangers_keep_no_member_out() -> None:
    """S11.3: together they took all handshakes of a second, of members too, for as long as they liked."""
    clock, gone = Clock(), list[str]()
    vestibule = Vestibule(clock)
    member, newcomer = visitors(["198.51.100.7", "192.0.2.7"], gone)
    assert vestibule.enter(member)
    vestibule.note_member(member)
    assert 3 * NETWORK.per_s > TOTAL.per_s
    assert crowd(vestibule) == TOTAL.burst - 1
    assert not vestibule.enter(newcomer), "it has p2pd's streams until they are gone"
    assert vestibule.enter(member)
    for second in range(1, 10):
        clock.now = float(second)
        assert crowd(vestibule) == TOTAL.per_s
        assert not vestibule.enter(newcomer)
        assert all(vestibule.enter(member) for _ in range(int(EACH.per_s)))


def test_addresses_of_members_have_a_bound_together_and_are_forgotten() -> None:
    vestibule = Vestibule(Clock())
    members = visitors([f"10.{number // 256}.{number % 256}.1" for number in range(KNOWN_MAX)], [])
    for one in members:
        vestibule.note_member(one)
    assert sum(vestibule.enter(one) for one in members) == TOTAL.burst
    (other,) = visitors(["198.51.100.7"], [])
    vestibule.note_member(other)
    assert vestibule.enter(members[0]), "it counts with strangers now"
    assert not vestibule.enter(members[1])
