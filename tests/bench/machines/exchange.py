"""Loop time of the exchange machine by segments: ``python -m tests.bench.machines.exchange [--segments 2000]``.

Two contributors, each the owner of half of the segments. Every segment is sent, fails once, is sent again, arrives, is
reduced, and its result travels; after each event the machine is asked what the round asks it. Prints milliseconds of
CPU per segment for a tenth of the segments and for all, in turns, and the ratio of the whole times: 10 is linear.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from statistics import median

from dilocoxd.ids import Attempt, Digest, Monotonic, PeerId, PhaseId, RoundIndex
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.facts import Reduced, SegmentReceived
from dilocoxd.machines.exchange.inbox import Inbox
from dilocoxd.machines.exchange.segments import KIND_CONTRIBUTION, KIND_RESULT, SegmentKey
from dilocoxd.machines.limits import PayloadShape
from dilocoxd.wire.entry import Contribution, Signature, payload_root
from dilocoxd.wire.merkle import merkle_root
from dilocoxd.wire.messages import Propose

ME, OTHER = PeerId("a"), PeerId("b")
ROUND, ATTEMPT, PHASE = RoundIndex(0), Attempt(0), PhaseId(1)


def hashes(peer: str, count: int) -> tuple[Digest, ...]:
    return tuple(Digest(hashlib.sha256(f"{peer} {segment}".encode()).digest()) for segment in range(count))


def proposal(payloads: dict[PeerId, tuple[Digest, ...]], count: int) -> Propose:
    return Propose(
        ROUND, ATTEMPT, bytes(32), bytes(32),
        tuple(Contribution(peer, PHASE, ROUND, 1, 100, payload_root(payload)) for peer, payload in payloads.items()),
        (Signature(b"key", b"signature"),) * 2, (),
        tuple(int(segment >= count // 2) for segment in range(count)), 0, 0, 1, (), (),
    )  # fmt: skip


def exchange_seconds(count: int) -> float:
    """CPU seconds of one whole exchange of `count` segments."""
    payloads = {peer: hashes(peer, count) for peer in (ME, OTHER)}
    propose = proposal(payloads, count)
    inbox = Inbox(1)
    inbox.open(propose.contributions, ME)
    roots = {peer: merkle_root(payload) for peer, payload in payloads.items()}
    mean = merkle_root(list(roots.values()))
    started = time.process_time()
    exchange = Exchange(ME, PayloadShape(1, (1000,) * count), propose, inbox)
    exchange.start(payloads[ME])
    for own in range(count // 2):
        theirs, now = count // 2 + own, Monotonic(float(own))
        key = SegmentKey(KIND_CONTRIBUTION, ROUND, ATTEMPT, 0, own, PHASE)
        exchange.on_segment(SegmentReceived(OTHER, key, payloads[OTHER][own], roots[OTHER]))
        look(exchange, now)
        exchange.on_reduced(Reduced(ROUND, ATTEMPT, 0, own, payloads[ME][own]))
        look(exchange, now)
        for sent in (exchange.key(KIND_CONTRIBUTION, 0, theirs), exchange.key(KIND_RESULT, 0, own)):
            exchange.on_failed(OTHER, sent, now)
            look(exchange, now)
            exchange.on_sent(OTHER, sent)
            look(exchange, now)
        key = SegmentKey(KIND_RESULT, ROUND, ATTEMPT, 0, theirs, None)
        exchange.on_segment(SegmentReceived(OTHER, key, payloads[OTHER][theirs], mean))
        look(exchange, now)
    assert exchange.result_hashes is not None, "all results are here"
    return time.process_time() - started


def look(exchange: Exchange, now: Monotonic) -> None:
    """What machines/round/exchanging.py asks after each event."""
    if exchange.result_hashes is None:
        exchange.retry(now)
        exchange.owed_by()
        exchange.has_all_inputs()
        exchange.next_retry()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=2000, help="of the larger exchange")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args()
    many, few = options.segments, options.segments // 10
    pairs = [(exchange_seconds(few), exchange_seconds(many)) for _ in range(options.repetitions)]
    for count, seconds in zip((few, many), zip(*pairs, strict=True), strict=True):
        print(f"{count:6d} segments: {1e3 * min(seconds) / count:.3f} ms of CPU per segment")
    ratio = median(large / small for small, large in pairs)
    print(f"ten times the segments take {ratio:.1f} times as long")


if __name__ == "__main__":
    main()
