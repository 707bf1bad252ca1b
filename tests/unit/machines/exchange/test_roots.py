"""Every summand of a mean is part of a payload whose root was announced (rule X10)."""

from __future__ import annotations

import hashlib

import pytest

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.facts import PassPrepared, Reduced, SegmentReceived
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.exchange.orders import SegmentOrder, SendSegment
from dilocoxd.machines.exchange.roots import Contradiction
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT, Destination, SegmentKey
from dilocoxd.machines.limits import PayloadShape
from dilocoxd.wire.entry import Contribution, Signature, payload_root
from dilocoxd.wire.merkle import MerkleTree, merkle_root
from dilocoxd.wire.messages import Propose

A, B, C = (PeerId(name) for name in "abc")
SHAPE = PayloadShape(2, (10, 10, 10))


def hashes(peer: str, pass_index: int) -> tuple[Digest, ...]:
    texts = (f"{peer} {pass_index} {segment}" for segment in range(3))
    return tuple(Digest(hashlib.sha256(text.encode()).digest()) for text in texts)


def contribution(peer: PeerId) -> Contribution:
    return Contribution(peer, PhaseId(7), RoundIndex(0), 1, 1, payload_root(hashes(peer, 0)))


def exchange_of(me: PeerId) -> Exchange:
    """Segment s is owned by the s-th of a, b, c."""
    everybody = tuple(contribution(peer) for peer in (A, B, C))
    offers = (Signature(b"key", b"signature"),) * 3
    propose = Propose(
        round=RoundIndex(0),
        attempt=Attempt(0),
        parent=bytes(32),
        state_digest=bytes(32),
        contributions=everybody,
        offers=offers,
        observers=(),
        owners=(0, 1, 2),
        lowrank_r=0,
        next_lowrank_r=0,
        next_inner_steps=0,
        parent_voters=(),
        evidence=(),
    )
    inbox = Inbox(2)
    inbox.open(everybody, me)
    return Exchange(me, SHAPE, propose, inbox)


def key(kind: int, pass_index: int, segment: int) -> SegmentKey:
    phase = PhaseId(7) if kind == KIND_CONTRIBUTION else None
    return SegmentKey(kind, RoundIndex(0), Attempt(0), pass_index, segment, phase)


def share(peer: PeerId, pass_index: int, segment: int, payload: tuple[Digest, ...] | None = None) -> SegmentReceived:
    offered = payload or hashes(peer, pass_index)
    place = key(KIND_CONTRIBUTION, pass_index, segment)
    return SegmentReceived(peer, place, offered[segment], merkle_root(offered))


def result(owner: PeerId, pass_index: int, segment: int, root: Digest) -> SegmentReceived:
    return SegmentReceived(owner, key(KIND_RESULT, pass_index, segment), hashes("result", pass_index)[segment], root)


def takes(exchange: Exchange, event: SegmentReceived, proof: tuple[bytes, ...]) -> bool:
    found = exchange.destination(event.peer, event.key)
    assert isinstance(found, Destination)
    return found.takes(event.sha256, event.root, proof)


def taken(found: list[SegmentOrder] | Contradiction) -> list[SegmentOrder]:
    """Orders of a segment or payload that contradicts nothing."""
    assert not isinstance(found, Contradiction), found
    return found


def test_share_is_taken_only_with_the_proof_that_it_was_offered() -> None:
    exchange = exchange_of(A)
    exchange.start(hashes(A, 0))
    sound, tree = share(B, 0, 0), MerkleTree(hashes(B, 0))
    assert takes(exchange, sound, tree.proof(0))
    assert not takes(exchange, sound, tree.proof(1)), "the proof of another segment"
    assert not takes(exchange, sound, ()), "no proof"
    other = (Digest(bytes(32)), *hashes(B, 0)[1:])
    assert not takes(exchange, share(B, 0, 0, other), MerkleTree(other).proof(0)), "of a payload that was not offered"


def test_whoever_sends_shows_what_its_segment_is_part_of() -> None:
    exchange = exchange_of(A)
    sent = [order for order in exchange.start(hashes(A, 0)) if isinstance(order, SendSegment)]
    assert {(order.peer, order.key.segment) for order in sent} == {(B, 1), (C, 2)}
    for order in sent:
        there = exchange_of(order.peer)
        there.start(hashes(order.peer, 0))
        assert takes(there, SegmentReceived(A, order.key, order.sha256, order.root), order.proof)


def unprepared(me: PeerId) -> tuple[Exchange, PassPrepared]:
    """All shares and results of pass 0 are here; our payload of pass 1, which is not told yet."""
    exchange, mine = exchange_of(me), "abc".index(me)
    exchange.start(hashes(me, 0))
    others = [peer for peer in (A, B, C) if peer != me]
    for peer in others:
        taken(exchange.on_segment(share(peer, 0, mine)))
    exchange.on_reduced(Reduced(RoundIndex(0), Attempt(0), 0, mine, hashes("result", 0)[mine]))
    root = exchange.roots.summands(0)
    assert root == merkle_root([payload_root(hashes(peer, 0)) for peer in (A, B, C)])
    for peer in others:
        assert takes(exchange, result(peer, 0, "abc".index(peer), root), ())
        assert not takes(exchange, result(peer, 0, "abc".index(peer), Digest(bytes(32))), ()), "of other summands"
        exchange.on_segment(result(peer, 0, "abc".index(peer), root))
    return exchange, PassPrepared(RoundIndex(0), Attempt(0), 1, hashes(me, 1))


def first_pass_done(me: PeerId) -> Exchange:
    """All shares and results of pass 0 are here, and our payload of pass 1 is ready."""
    exchange, own = unprepared(me)
    taken(exchange.on_prepared(own))
    return exchange


def test_first_segment_of_a_later_pass_binds_its_sender() -> None:
    exchange = first_pass_done(A)
    assert takes(exchange, share(B, 1, 0), MerkleTree(hashes(B, 1)).proof(0))
    taken(exchange.on_segment(share(B, 1, 0)))
    assert exchange.roots.of(1, B) == merkle_root(hashes(B, 1))


@pytest.mark.parametrize("liar", [B, C])
def test_results_of_a_later_pass_name_the_same_summands(liar: PeerId) -> None:
    exchange, mine = first_pass_done(A), 0
    for peer in (B, C):
        taken(exchange.on_segment(share(peer, 1, mine)))
    exchange.on_reduced(Reduced(RoundIndex(0), Attempt(0), 1, mine, hashes("result", 1)[mine]))
    assert exchange.roots.summands(1) == merkle_root([merkle_root(hashes(peer, 1)) for peer in (A, B, C)])
    lie = result(liar, 1, "abc".index(liar), Digest(bytes(32)))
    assert not takes(exchange, lie, ())
    assert exchange.on_segment(lie) == Contradiction(liar, 1, KIND_RESULT)
    assert (1, "abc".index(liar)) not in exchange.results


LIE = Digest(bytes([7]) * 32)


def test_second_root_of_a_payload_contradicts_the_first() -> None:
    exchange = first_pass_done(A)
    exchange.roots.bind(1, B, merkle_root(hashes("other", 1)))
    assert exchange.on_segment(share(B, 1, 0)) == Contradiction(B, 1, KIND_CONTRIBUTION)


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("liar", [A, C])
def test_result_that_came_first_must_name_the_summands_that_came_later(liar: PeerId, place: int) -> None:
    """Whichever root is the last to be known, our own included: the result is compared then, and its owner blamed."""
    exchange, own = unprepared(B)
    coming: list[SegmentReceived | PassPrepared] = [share(A, 1, 1), share(C, 1, 1)]
    coming.insert(place, own)
    taken(exchange.on_segment(result(liar, 1, "abc".index(liar), LIE)))  # nothing is known yet
    for number, event in enumerate(coming):
        found = exchange.on_prepared(event) if isinstance(event, PassPrepared) else exchange.on_segment(event)
        is_last = number + 1 == len(coming)
        assert isinstance(found, Contradiction) == is_last
    assert found == Contradiction(liar, 1, KIND_RESULT)


def test_result_that_came_first_and_names_the_true_summands_is_kept() -> None:
    exchange, own = unprepared(B)
    true = merkle_root([merkle_root(hashes(peer, 1)) for peer in (A, B, C)])
    taken(exchange.on_segment(share(A, 1, 1)))
    taken(exchange.on_prepared(own))
    taken(exchange.on_segment(result(A, 1, 0, true)))  # A had all shares before we had that of C
    taken(exchange.on_segment(share(C, 1, 1)))
    exchange.on_reduced(Reduced(RoundIndex(0), Attempt(0), 1, 1, hashes("result", 1)[1]))
    taken(exchange.on_segment(result(C, 1, 2, true)))
    assert exchange.result_hashes == (*hashes("result", 0), *hashes("result", 1))


def test_payload_under_another_root_does_not_count_for_a_new_offer() -> None:
    inbox = Inbox(2)
    inbox.open((contribution(A), contribution(B)), A)
    inbox.keep(B, PhaseId(7), 0, hashes(B, 0)[0])
    assert inbox.holds(contribution(B), 0)
    changed = Contribution(B, PhaseId(7), RoundIndex(0), 1, 1, bytes(32))
    inbox.open((contribution(A), changed), A)
    assert not inbox.holds(changed, 0)
