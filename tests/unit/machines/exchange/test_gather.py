"""Where everybody sums for itself, nobody is named as an owner and nobody sends a result (rule X11)."""

from __future__ import annotations

import dataclasses

import pytest

from dilocoxd.ids import Attempt, PeerId, RoundIndex
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.facts import PassPrepared, Reduced
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.exchange.orders import OrderPass, OrderReduce, SegmentOrder, SendSegment
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT, Destination, Refusal
from dilocoxd.machines.limits import PayloadShape, RoundLimits
from dilocoxd.machines.round.grouping import proposal_problem
from tests.unit.machines.exchange.test_roots import A, B, C, contribution, exchange_of, hashes, key, share, taken, takes

SHAPE = PayloadShape(2, (10, 10, 10), is_gathered=True)
OBSERVER = PeerId("o")


def gathering(me: PeerId) -> Exchange:
    propose = dataclasses.replace(exchange_of(A).propose, owners=(0, 0, 0), observers=(OBSERVER,))
    inbox = Inbox(3)
    inbox.open(propose.contributions, me)
    return Exchange(me, SHAPE, propose, inbox)


def sent(orders: list[SegmentOrder]) -> list[SendSegment]:
    return [order for order in orders if isinstance(order, SendSegment)]


def test_everybody_sends_all_of_its_payload_to_everybody_and_no_result() -> None:
    exchange = gathering(A)
    pushed = sent(exchange.start(hashes(A, 0)))
    assert {(order.peer, order.key.segment) for order in pushed} == {(p, s) for p in (B, C, OBSERVER) for s in range(3)}
    assert {order.key.kind for order in pushed} == {KIND_CONTRIBUTION}
    reduced: list[SegmentOrder] = []
    for peer in (B, C):
        for segment in range(3):
            reduced += taken(exchange.on_segment(share(peer, 0, segment)))
    assert [order.segment for order in reduced if isinstance(order, OrderReduce)] == [0, 1, 2]
    later: list[SegmentOrder] = []
    for segment in range(3):
        later += exchange.on_reduced(Reduced(RoundIndex(0), Attempt(0), 0, segment, hashes("result", 0)[segment]))
    assert [type(order) for order in later] == [OrderPass]
    prepared = taken(exchange.on_prepared(PassPrepared(RoundIndex(0), Attempt(0), 1, hashes(A, 1))))
    assert len(sent(prepared)) == 9


@pytest.mark.parametrize("me", [A, OBSERVER])
def test_results_of_others_are_refused_and_shares_are_taken_with_their_proof(me: PeerId) -> None:
    exchange = gathering(me)
    assert isinstance(exchange.destination(B, key(KIND_RESULT, 0, 1)), Refusal)
    event = share(B, 0, 1)
    found = exchange.destination(B, event.key)
    assert isinstance(found, Destination)
    assert found.slot is not None
    assert not takes(exchange, event, ())


def test_observer_sums_what_it_gets() -> None:
    exchange = gathering(OBSERVER)
    exchange.start(())
    orders: list[SegmentOrder] = []
    for peer in (A, B, C):
        orders += taken(exchange.on_segment(share(peer, 0, 2)))
    (order,) = [order for order in orders if isinstance(order, OrderReduce)]
    assert len({s.slot for s in order.shares}) == 3
    assert min(s.slot for s in order.shares) >= 0


def test_who_owes_an_input_is_waited_for() -> None:
    exchange = gathering(A)
    exchange.start(hashes(A, 0))
    for segment in range(3):
        exchange.on_segment(share(B, 0, segment))
    assert exchange.owed_by() == {C}


def test_proposal_that_names_owners_is_refused() -> None:
    propose = gathering(A).propose
    chain = ChainView(
        run_id=None,  # type: ignore[arg-type]
        height=RoundIndex(0),
        head=propose.parent,  # type: ignore[arg-type]
        state_digest=propose.state_digest,  # type: ignore[arg-type]
    )
    assert contribution(A) in propose.contributions
    assert proposal_problem(propose, chain, SHAPE, RoundLimits()) == ""
    named = dataclasses.replace(propose, owners=(0, 1, 0))
    assert proposal_problem(named, chain, SHAPE, RoundLimits()) == "names owners, but everybody sums for itself"
