"""Moments and what is counted from them."""

import pytest

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.round.timers import GRACE, LEAVE, OTHER_CANDIDATE, VOTE, Mark, Timers, earliest

LIMITS = RoundLimits()
AT = Monotonic(10.0)


def test_a_moment_counts_from_its_first_note_until_it_is_restarted_or_dropped() -> None:
    timers = Timers()
    timers.start(Mark.VOTED_ON, AT)
    timers.start(Mark.VOTED_ON, Monotonic(50.0))
    assert timers.end(VOTE, LIMITS) == AT + LIMITS.vote_timeout_s
    timers.restart(Mark.VOTED_ON, Monotonic(50.0))
    assert timers.since(Mark.VOTED_ON) == 50.0
    timers.stop(Mark.VOTED_ON)
    assert not timers.is_running(Mark.VOTED_ON)
    with pytest.raises(KeyError):
        timers.end(VOTE, LIMITS)


def test_each_peer_has_a_moment_of_its_own() -> None:
    timers, a, b = Timers(), PeerId("a"), PeerId("b")
    timers.start(Mark.PROPOSAL, AT, a)
    timers.start(Mark.PROPOSAL, Monotonic(20.0), b)
    assert timers.end(OTHER_CANDIDATE, LIMITS, b) - timers.end(OTHER_CANDIDATE, LIMITS, a) == 10.0
    timers.stop(Mark.PROPOSAL, a)
    assert timers.since(Mark.PROPOSAL, a) is None and timers.since(Mark.PROPOSAL, b) == 20.0


def test_all_moments_move_together() -> None:
    timers = Timers()
    timers.start(Mark.LEAVE, AT)
    timers.start(Mark.PROPOSAL, AT, PeerId("a"))
    timers.move(7.0)
    assert timers.end(LEAVE, LIMITS) == AT + 7.0 + LIMITS.leave_timeout_s
    assert timers.since(Mark.PROPOSAL, PeerId("a")) == AT + 7.0


def test_length_that_is_measured_is_not_counted_here() -> None:
    timers = Timers()
    timers.start(Mark.CONTRIBUTION, AT)
    with pytest.raises(AssertionError, match="no fixed length"):
        timers.end(GRACE, LIMITS)


def test_earliest_of_nothing_is_nothing() -> None:
    assert earliest() is None and earliest(None) is None
    assert earliest(None, Monotonic(3.0), AT) == 3.0
