"""What is counted as it happens is what looking at every segment would find, whatever happens in whatever order."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, RoundIndex
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.facts import PassPrepared, Reduced, SegmentReceived
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.exchange.orders import OrderPass, OrderReduce, SegmentOrder, SendSegment
from dilocoxd.machines.exchange.segments import KIND_RESULT, SegmentKey
from dilocoxd.machines.exchange.sends import OpenSends
from dilocoxd.machines.limits import PayloadShape
from dilocoxd.wire.entry import payload_root
from dilocoxd.wire.merkle import merkle_root
from tests.unit.machines.exchange.test_roots import A, B, C, exchange_of, hashes, key, result, share, taken


class Slow:
    """The same questions, answered by looking at everything (as `Exchange` did at first)."""

    def __init__(self, exchange: Exchange) -> None:
        self._of = exchange
        self.transfers: dict[tuple[PeerId, SegmentKey], Monotonic | None] = {}

    def told(self, orders: list[SegmentOrder]) -> None:
        for order in orders:
            if isinstance(order, SendSegment):
                self.transfers[order.peer, order.key] = None

    def failed(self, peer: PeerId, key: SegmentKey, at: Monotonic) -> None:
        self.transfers[peer, key] = at

    def due(self, now: Monotonic) -> list[tuple[PeerId, SegmentKey]]:
        found = [target for target, at in self.transfers.items() if at is not None and at <= now]
        self.transfers.update(dict.fromkeys(found))
        return found

    def next_retry(self) -> Monotonic | None:
        return min((at for at in self.transfers.values() if at is not None), default=None)

    def _is_complete(self, pass_index: int) -> bool:
        return all((pass_index, segment) in self._of.results for segment in range(self._of.shape.num_segments))

    def result_hashes(self) -> tuple[Digest, ...] | None:
        e = self._of
        if len(e.results) < e.shape.num_passes * e.shape.num_segments:
            return None
        return tuple(sha256 for _, sha256 in sorted(e.results.items()))

    def has_all_inputs(self) -> bool:
        e = self._of
        return all((e.pass_index, segment) in e.ordered for segment in e.owned)

    def owed_by(self) -> frozenset[PeerId]:
        e = self._of
        inputs = {
            peer
            for segment in e.owned
            if (e.pass_index, segment) not in e.ordered
            for peer in e.group
            if not e._has_input(e.pass_index, segment, peer)
        }
        if inputs:
            return frozenset(inputs - {e.me})
        current = min((p for p in range(e.shape.num_passes) if not self._is_complete(p)), default=0)
        return frozenset({o for s, o in enumerate(e.owners) if (current, s) not in e.results} - {e.me})


def agree(exchange: Exchange, slow: Slow) -> None:
    assert exchange.next_retry() == slow.next_retry()
    assert exchange.owed_by() == slow.owed_by()
    assert exchange.has_all_inputs() == slow.has_all_inputs()
    assert exchange.result_hashes == slow.result_hashes()
    for pass_index in range(exchange.shape.num_passes):
        assert exchange._counts.is_complete(pass_index) == slow._is_complete(pass_index)


def others_events(exchange: Exchange) -> Iterator[SegmentReceived]:
    """All that the others may send, also what is not wanted."""
    for pass_index in range(exchange.shape.num_passes):
        root = merkle_root([payload_root(hashes(peer, pass_index)) for peer in (A, B, C)])
        for segment in range(exchange.shape.num_segments):
            for peer in (A, B, C):
                if peer != exchange.me:
                    yield share(peer, pass_index, segment)
                    yield result(peer, pass_index, segment, root)


@pytest.mark.parametrize("me", [A, B])
@pytest.mark.parametrize("is_gathered", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_counters_agree_with_a_look_at_everything(me: PeerId, is_gathered: bool, seed: int) -> None:
    rng = random.Random(f"{me} {is_gathered} {seed}")
    propose = exchange_of(A).propose
    inbox = Inbox(3)
    inbox.open(propose.contributions, me)
    for event in rng.sample([share(peer, 0, s) for peer in (A, B, C) if peer != me for s in range(3)], k=seed % 4):
        inbox.keep(event.peer, event.key.phase, event.key.segment, event.sha256)  # of an attempt before
    exchange = Exchange(me, PayloadShape(2, (10, 10, 10), is_gathered=is_gathered), propose, inbox)
    slow, clock = Slow(exchange), 0.0
    agree(exchange, slow)
    waiting: list[SegmentOrder] = list(exchange.start(hashes(me, 0)))
    slow.told(waiting)
    events = [event for event in others_events(exchange) for _ in range(2)]
    rng.shuffle(events)
    while events or waiting:
        agree(exchange, slow)
        clock += rng.random()
        if waiting and rng.random() < 0.6:
            orders = answer(exchange, slow, waiting.pop(rng.randrange(len(waiting))), rng, clock)
        elif events:
            orders = taken(exchange.on_segment(events.pop()))
        else:
            orders = exchange.retry(Monotonic(clock))
            assert [(o.peer, o.key) for o in orders if isinstance(o, SendSegment)] == slow.due(Monotonic(clock))
        slow.told(orders)
        waiting += orders
    agree(exchange, slow)
    while (at := exchange.next_retry()) is not None:
        assert [(o.peer, o.key) for o in exchange.retry(at) if isinstance(o, SendSegment)] == slow.due(at)
        agree(exchange, slow)


def answer(exchange: Exchange, slow: Slow, order: SegmentOrder, rng: random.Random, clock: float) -> list[SegmentOrder]:
    """What the network, or the outer worker, makes of an order."""
    match order:
        case SendSegment():
            if rng.random() < 0.4:
                at = Monotonic(clock + rng.choice((0.0, 1.0, 1.0, 5.0)))
                exchange.on_failed(order.peer, order.key, at)
                slow.failed(order.peer, order.key, at)
            else:
                exchange.on_sent(order.peer, order.key)
                slow.transfers.pop((order.peer, order.key), None)
            return []
        case OrderReduce():
            sha256 = hashes("result", order.pass_index)[order.segment]
            return exchange.on_reduced(Reduced(order.round, order.attempt, order.pass_index, order.segment, sha256))
        case OrderPass():
            own = hashes(exchange.me, order.pass_index)
            return taken(exchange.on_prepared(PassPrepared(RoundIndex(0), Attempt(0), order.pass_index, own)))
    raise AssertionError(order)


def test_what_is_tried_again_and_again_is_kept_once() -> None:
    transfers, target = OpenSends(), key(KIND_RESULT, 0, 1)
    assert transfers.begin(B, target, Digest(b"h" * 32))
    for n in range(100):
        transfers.fail(B, target, Monotonic(float(n)))
        transfers.fail(B, target, Monotonic(float(n)))
        assert transfers.due(Monotonic(n - 0.5)) == []
        assert [peer for peer, _, _ in transfers.due(Monotonic(float(n)))] == [B]
        assert len(transfers._pauses) == 0 and transfers.next_retry() is None
    assert transfers.deliver(B, target) and not transfers.deliver(B, target)
    transfers.fail(B, target, Monotonic(1.0))
    assert transfers.next_retry() is None
    assert not transfers.begin(B, target, Digest(b"h" * 32)), "it is there"
