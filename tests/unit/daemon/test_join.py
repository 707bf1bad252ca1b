"""When a starting peer has caught up enough to train."""

from dilocoxd.daemon.join import MEET_PATIENCE_S, CatchUp


def test_it_waits_until_it_stands_where_the_best_stood() -> None:
    state = CatchUp()
    assert not state.is_done(0, [3, 7], 0.0)
    assert not state.is_done(5, [3, 8], 1.0)
    assert state.is_done(8, [3, 8], 2.0)


def test_nobody_is_ahead() -> None:
    assert CatchUp().is_done(0, [], 0.0)
    assert CatchUp().is_done(4, [2, 4], 0.0)


def test_newcomer_whose_donors_fall_silent_never_begins_a_second_run() -> None:
    state = CatchUp()
    assert not state.is_done(0, [142], 0.0)
    assert not state.is_done(0, [], 1.0)
    assert not state.is_done(0, [0], 1000.0)
    assert state.target == 142
    assert state.is_done(142, [142], 1001.0)


def test_peer_with_entries_of_its_own_goes_on_alone_after_a_while() -> None:
    state = CatchUp()
    assert not state.is_done(50, [60], 0.0)
    assert not state.is_done(50, [40], 1.0)
    assert not state.is_done(50, [60], 10.0), "they are back: it counts anew"
    assert not state.is_done(50, [], 11.0)
    assert state.is_done(50, [], 11.1 + MEET_PATIENCE_S)
