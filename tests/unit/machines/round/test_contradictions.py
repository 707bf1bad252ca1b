"""X10.5: results of other summands than were offered end the attempt, and their owner is blamed."""

import pytest

from dilocoxd.ids import Attempt, Digest, PhaseId
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.facts import PassPrepared, SegmentFact, SegmentReceived
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT, SegmentKey
from dilocoxd.machines.limits import PayloadShape
from dilocoxd.machines.round.exchanging import on_bytes
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.outcomes import EXCHANGING, GiveUp, Outcome, Told
from dilocoxd.machines.round.outputs import ReportPeer
from dilocoxd.wire.merkle import merkle_root
from tests.unit.machines.round_world import HASHES, ME, START, B, height_of, proposal

LIE = Digest(bytes([7]) * 32)


def begun() -> Height:
    """An exchange of two passes, of us and B."""
    height = height_of(B)
    proposed = proposal(ME, B)
    height.own.inbox.open(proposed.contributions, ME)
    height.attempt.begin(ME, Exchange(ME, PayloadShape(2, (10, 10)), proposed, height.own.inbox), START)
    height.own.orders.add((height.round, Attempt(0), 1, None))
    return height


def told(height: Height, event: SegmentFact) -> Outcome | None:
    return on_bytes(height, event, EXCHANGING, START)


@pytest.mark.parametrize("is_own_last", [True, False])
def test_result_that_came_before_its_summands_and_names_others_is_blamed_on_its_owner(is_own_last: bool) -> None:
    height = begun()
    exchange = height.attempt.exchange
    assert exchange is not None
    theirs = exchange.owners.index(B)
    of_result = SegmentKey(KIND_RESULT, height.round, Attempt(0), 1, theirs, None)
    of_share = SegmentKey(KIND_CONTRIBUTION, height.round, Attempt(0), 1, 1 - theirs, PhaseId(0))
    share = SegmentReceived(B, of_share, HASHES[0], merkle_root(HASHES))
    own = PassPrepared(height.round, Attempt(0), 1, HASHES)
    assert isinstance(told(height, SegmentReceived(B, of_result, HASHES[1], LIE)), Told)
    first, last = (share, own) if is_own_last else (own, share)
    assert isinstance(told(height, first), Told)
    found = told(height, last)
    assert isinstance(found, GiveUp)
    assert found.blames == (B,) and found.is_told
    why = "its result is of other summands than were named in pass 1"
    assert found.orders == (ReportPeer(B, "bad_root", why),)
