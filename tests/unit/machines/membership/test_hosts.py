"""Whose host answers: silence counts once something was sent again in vain, for longer on longer links."""

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.membership.hosts import HOLD_S, QUIET_S, SLOW_HALF_S, SLOW_KEPT, HostWatch, LinkFacts

A, B = PeerId("a"), PeerId("b")
LOOK_S = 0.1


def first_silent_s(round_trip_s: float, repeated_at: float, *others: LinkFacts, limit_s: float = 9.0) -> float | None:
    """When A counts as silent, whose link went quiet at 0 and has repeated twice in vain at `repeated_at`."""
    watch = HostWatch()
    for number in range(1, int(limit_s / LOOK_S)):
        now = number * LOOK_S
        link = LinkFacts(now, 2 if now >= repeated_at else 1, round_trip_s)
        if A in watch.look({A: (link, *others), B: (LinkFacts(0.0, 0, 0.0),)}, Monotonic(now)).silent:
            return round(now, 1)
    return None


def test_host_that_acknowledges_nothing_is_silent_within_about_a_second() -> None:
    assert first_silent_s(0.001, 0.6) in (0.9, 1.0)


def test_long_link_gets_the_time_of_its_round_trips() -> None:
    repeated_at = 1.8  # RTO 0.6 s, then 1.2 s
    found = first_silent_s(0.3, repeated_at)
    assert found is not None and found > repeated_at + 0.3 + 0.3, "the second repetition could be answered"


def test_three_connections_that_repeated_once_say_as_much_as_one_that_did_twice() -> None:
    once = LinkFacts(9.0, 1, 0.001)
    assert first_silent_s(0.001, 9.0, once) is None
    found = first_silent_s(0.001, 9.0, once, once)
    assert found is not None and QUIET_S + HOLD_S <= found <= QUIET_S + HOLD_S + 3 * LOOK_S
    assert first_silent_s(0.001, 9.0, once, LinkFacts(9.0, 0, 0.001)) is None


def silent_at(watch: HostWatch, begins: float, round_trip_s: float = 0.001) -> float:
    """So long after it went quiet at `begins` A counts as silent."""
    for number in range(1, 300):
        quiet_s = number * LOOK_S
        link = LinkFacts(quiet_s, 2 if quiet_s >= 0.6 else 0, round_trip_s)
        if watch.look({A: (link,), B: (LinkFacts(0.0, 0, 0.0),)}, Monotonic(begins + quiet_s)).silent:
            return round(quiet_s, 1)
    raise AssertionError("never")


def test_round_trip_that_was_slow_with_the_payloads_before_is_expected_to_be_again() -> None:
    """An idle thin line answers in a millisecond, until payloads fill its queue: the first one is not to be blamed."""
    watch = HostWatch()
    watch.look({A: (LinkFacts(0.0, 0, 1.2), LinkFacts(0.0, 0, 0.001))}, Monotonic(1.0))
    assert not watch.look({}, Monotonic(1.1)).silent, "it rests meanwhile"
    assert silent_at(watch, 60.0) > QUIET_S + HOLD_S + 3.0
    assert silent_at(watch, 60.0 + 20 * SLOW_HALF_S) < 1.1, "that is forgotten"


def test_slow_round_trips_of_no_more_peers_than_there_can_be_are_kept() -> None:
    watch = HostWatch()
    for number in range(3 * SLOW_KEPT):
        watch.look({PeerId(f"p{number}"): (LinkFacts(0.0, 0, 1.0 + number),)}, Monotonic(0.0))
    assert len(watch._slow) == SLOW_KEPT


def test_connection_that_brings_something_speaks_for_its_host() -> None:
    assert first_silent_s(0.001, 0.6, LinkFacts(0.2, 0, 0.001)) is None


def test_idle_connection_says_nothing() -> None:
    assert first_silent_s(0.001, 1e9) is None


def test_who_was_not_running_begins_anew() -> None:
    watch, quiet = HostWatch(), (LinkFacts(5.0, 3, 0.001),)
    assert not watch.look({A: quiet}, Monotonic(1.0)).silent
    assert not watch.look({A: quiet}, Monotonic(9.0)).silent
    assert watch.look({A: quiet}, Monotonic(9.5)).silent == {A}


def test_host_answers_that_was_heard_a_moment_ago() -> None:
    watch = HostWatch()
    heard = watch.look({A: (LinkFacts(1.2, 1, 0.001),), B: (LinkFacts(1.9, 0, 0.001),)}, Monotonic(1.0))
    assert heard.answering == {A} and not heard.silent
    assert watch.look({B: (LinkFacts(1.9, 0, 0.3),)}, Monotonic(1.1)).answering == {B}


def test_silent_host_answers_when_something_comes_and_not_when_the_connections_that_told_it_are_closed() -> None:
    watch, quiet, other = HostWatch(), LinkFacts(0.8, 2, 0.001), LinkFacts(0.9, 0, 0.001)
    watch.look({A: (quiet, other)}, Monotonic(1.0))
    assert watch.look({A: (quiet, other)}, Monotonic(1.3)).silent == {A}
    heard = watch.look({A: (other,)}, Monotonic(1.4))
    assert heard.silent == {A} and not heard.answering
    heard = watch.look({A: (LinkFacts(0.05, 0, 0.001),)}, Monotonic(1.5))
    assert heard.answering == {A} and not heard.silent
