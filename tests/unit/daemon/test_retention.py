"""What old payloads are kept for: our own replay, live peers within limits, short absences."""

from dilocoxd.daemon.snapshot_keeper import PAYLOAD_ROUNDS_MIN, payloads_needed_from

LIMIT = 1000


def test_nothing_is_dropped_before_a_snapshot_makes_it_needless() -> None:
    assert payloads_needed_from(500, [], [500], LIMIT) == 0
    assert payloads_needed_from(500, [40, 400], [500], LIMIT) == 40


def test_newest_payloads_stay_for_those_who_were_away_for_a_moment() -> None:
    assert payloads_needed_from(500, [490, 500], [500], LIMIT) == 500 - PAYLOAD_ROUNDS_MIN
    assert payloads_needed_from(10, [10], [], LIMIT) == 0


def test_live_peer_keeps_what_it_needs_but_not_for_ever() -> None:
    assert payloads_needed_from(5000, [4990, 5000], [4998, 4200], LIMIT) == 4200
    assert payloads_needed_from(5000, [4990, 5000], [4998, 3], LIMIT) == 4000
