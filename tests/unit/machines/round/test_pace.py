"""Measured phase times: what counts as a phase, and what nobody may conclude from a slow start."""

from dilocoxd.ids import Monotonic, PeerId
from dilocoxd.machines.limits import RoundLimits
from dilocoxd.machines.peers.pace import Pace
from dilocoxd.machines.peers.record import PeerRecords

A = PeerId("QmA")
LIMITS = RoundLimits(grace_factor=0.5, grace_min_s=1.0, grace_max_s=20.0)


def test_way_to_the_first_contribution_is_no_phase_time() -> None:
    records = PeerRecords()
    pace = Pace(records)
    pace.contributed(A, 1, Monotonic(90.0))
    assert pace.expected(A) is None
    assert pace.grace(LIMITS) == LIMITS.grace_max_s
    pace.contributed(A, 2, Monotonic(96.0))
    assert pace.expected(A) == 102.0
    assert pace.grace(LIMITS) == 3.0


def test_skipped_phases_share_the_time_and_repeated_news_counts_once() -> None:
    records = PeerRecords()
    pace = Pace(records)
    pace.contributed(A, 1, Monotonic(0.0))
    pace.contributed(A, 4, Monotonic(12.0))
    pace.contributed(A, 4, Monotonic(13.0))
    pace.contributed(A, 3, Monotonic(14.0))
    assert records[A].phases.seconds == 4.0
    assert pace.expected(A) == 16.0


def test_the_time_that_a_peer_was_away_is_no_phase_time() -> None:
    records = PeerRecords()
    pace = Pace(records)
    for phase, at in ((0, 0.0), (1, 2.0)):
        pace.contributed(A, phase, Monotonic(at))
    pace.absent([A])
    assert pace.expected(A) is None
    assert pace.planned(A, 10, 0.1) is None
    pace.contributed(A, 2, Monotonic(40.0))
    assert records[A].phases.seconds == 2.0
    assert pace.expected(A) == 42.0
    pace.contributed(A, 3, Monotonic(44.0))
    assert records[A].phases.seconds == 3.0
