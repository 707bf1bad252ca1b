"""The exchange of an attempt, seen by the round: what moves it on, when it is given up, which entry comes of it.

Who owes which bytes is decided in machines/exchange. Source: protocol/06-rounds.md, R9, R12; protocol/07-exchange.md.
"""

from statistics import median_low
from typing import Final

from dilocoxd.ids import Digest, Monotonic, PeerId
from dilocoxd.machines.exchange.exchange import Exchange
from dilocoxd.machines.exchange.facts import (
    PassPrepared,
    Reduced,
    ReduceFailed,
    SegmentFact,
    SegmentReceived,
    SegmentSent,
    TransferFailed,
)
from dilocoxd.machines.exchange.orders import SegmentOrder
from dilocoxd.machines.exchange.roots import Contradiction
from dilocoxd.machines.exchange.segments import KIND_RESULT
from dilocoxd.machines.round.height import Height
from dilocoxd.machines.round.inputs import Audited
from dilocoxd.machines.round.locks import HeldLock
from dilocoxd.machines.round.outcomes import AT_WORK, GiveUp, Outcome, Told, VoteOn, Waiting
from dilocoxd.machines.round.outputs import OrderAudit, ReportPeer
from dilocoxd.machines.round.timers import (
    LEFT_BEHIND,
    PROGRESS,
    PROGRESS_OF_RESULTS,
    TRANSFER,
    Mark,
    earliest,
)
from dilocoxd.wire.entry import Entry, entry_hash

FEW_TIMEOUTS: Final = 8.0
FEW_PHASES: Final = 4.0
RESULTS_LONGER: Final = 1.5
"""Who lacks results only waits so much longer: the owner may have been kept waiting itself, and can name by whom."""


def look(height: Height, now: Monotonic) -> Outcome:
    """Go on, give up, or vote when all results are here."""
    exchange = height.attempt.exchange
    assert exchange is not None, "exchanging without an exchange"
    hashes = exchange.result_hashes
    if hashes is None:
        return _look_at_missing(height, exchange, now)
    if exchange.is_contributor and height.book.tips.pressing():
        # Somebody has committed this round without our vote: what we would vote for can only become a fork.
        return Waiting("recovery: others have decided this round without us")
    if not exchange.is_checked:
        # What does not decode must not be voted for: its entry could be committed, but applied by nobody. Nor committed
        # by an observer: all voters may be liars.
        return Waiting("the outer worker, which checks the results", None, tuple(exchange.check_results()))
    made = _entry(height, exchange, hashes)
    if exchange.shape.is_audited and exchange.is_contributor and not exchange.is_audited:
        return Waiting("our audit of the results", None, _audit(exchange, made))
    height.times.exchanged_at = now
    height.owned = exchange.owned_segments
    return VoteOn(made)


def _audit(exchange: Exchange, made: HeldLock) -> tuple[OrderAudit, ...]:
    """Ordered once (X13)."""
    if exchange.is_audit_ordered:
        return ()
    exchange.is_audit_ordered = True
    return (OrderAudit(made.entry.round, made.attempt, made.entry, made.offers, made.owners),)


def on_audited(height: Height, event: Audited, state: str, now: Monotonic) -> Outcome | None:
    """Our audit is over: vote, unless an owner was proved to have returned what does not follow from the shares."""
    exchange = height.attempt.exchange
    is_awaited = exchange is not None and exchange.is_of(event.round, event.attempt) and exchange.is_audit_ordered
    if exchange is None or not is_awaited or exchange.is_audited or state not in AT_WORK:
        return None
    exchange.is_audited = True
    exchange.num_moved += 1
    height.attempt.timers.restart(Mark.PROGRESS, now)
    if not event.culprits:
        return None
    reports = tuple(ReportPeer(peer, "false_result", event.why) for peer in event.culprits)
    return GiveUp(f"a result is false: {event.why}", event.culprits, orders=reports)


def _look_at_missing(height: Height, exchange: Exchange, now: Monotonic) -> Outcome:
    timers, limits = height.attempt.timers, height.limits
    if lost := sorted(filter(height.book.is_lost, exchange.by_peer)):
        return GiveUp(f"lost {', '.join(lost[:3])}")
    repeats = tuple(exchange.retry(now))
    owing = exchange.owed_by()
    names = ", ".join(sorted(owing)[:3])
    is_waiting_for_others = not height.own.orders
    left_behind_end = timers.end(LEFT_BEHIND, limits) if _is_left_behind(height, exchange) else None
    if left_behind_end is not None and now >= left_behind_end and is_waiting_for_others:
        return GiveUp(f"{names} went on and sends no results", tuple(owing), orders=repeats)
    # Whoever lacks an input gives up first and can name the culprit; who only lacks results waits half as long again.
    waits_for_input = bool(exchange.owned) and not exchange.has_all_inputs()
    timer = PROGRESS if waits_for_input else PROGRESS_OF_RESULTS
    end = timers.end(timer, limits)
    if now >= end and is_waiting_for_others:
        reason = f"no progress for {timer.seconds(limits):g} s, waited for {names or 'its own transfers'}"
        return GiveUp(reason, tuple(owing), orders=repeats)
    few_end = _few_end(height, exchange, now, waits_for_input=waits_for_input)
    if few_end is not None and now >= few_end and owing and is_waiting_for_others:
        length = _few_s(height, waits_for_input=waits_for_input)
        reason = f"most others are done since {length:g} s, waited for {names}"
        return GiveUp(reason, tuple(owing), orders=repeats)
    later = [one for one in (left_behind_end, few_end, end) if one is not None and now < one]
    until = earliest(exchange.next_retry(), *later)
    return Waiting(f"segments of {names}" if owing else "the outer worker", until, repeats)


def _few_end(height: Height, exchange: Exchange, now: Monotonic, *, waits_for_input: bool) -> Monotonic | None:
    """Until when those few are waited for who alone hold us up; None while they are not few (R12.13). Each segment is
    progress: who brings one of a thousand just in time would else make a round last for hours, blamed by nobody."""
    timers = height.attempt.timers
    if not exchange.is_contributor or not exchange.is_held_by_few:
        timers.stop(Mark.FEW_OWE)
        return None
    timers.start(Mark.FEW_OWE, now)
    since = timers.since(Mark.FEW_OWE)
    assert since is not None
    return Monotonic(since + _few_s(height, waits_for_input=waits_for_input))


def _few_s(height: Height, *, waits_for_input: bool) -> float:
    """Some phases, by what the others say of their steps, and some progress time-outs at least."""
    steps = [view.step_seconds for view in height.book.views().values() if view.is_live and view.step_seconds]
    phase_s = height.chain.inner_steps * median_low(steps) if steps else 0.0
    length = max(FEW_TIMEOUTS * height.limits.progress_timeout_s, FEW_PHASES * phase_s)
    return length if waits_for_input else RESULTS_LONGER * length


def _is_left_behind(height: Height, exchange: Exchange) -> bool:
    """All contributors say that they are beyond this round: once what we observe has stopped, nothing more will come.

    If we believe them, recovery starts just as soon; if not, others may need us in another attempt."""
    return not exchange.is_contributor and all(_says_it_is_beyond(height, peer) for peer in exchange.group)


def _says_it_is_beyond(height: Height, peer: PeerId) -> bool:
    """By its heartbeats, or by its own word where membership has none. Silence says nothing (R12.10)."""
    record = height.book.records[peer]
    said = record.view or record.tip.claim
    return said is not None and said.height > height.round


def _entry(height: Height, exchange: Exchange, hashes: tuple[Digest, ...]) -> HeldLock:
    """What is to be voted on."""
    propose = exchange.propose
    entry = Entry(
        run_id=height.terms.site.run_id,
        round=height.round,
        parent=height.chain.head,
        state_digest=height.chain.state_digest,
        contributions=propose.contributions,
        result_hashes=hashes,
        lowrank_r=propose.lowrank_r,
        next_lowrank_r=propose.next_lowrank_r,
        next_inner_steps=propose.next_inner_steps,
        parent_voters=propose.parent_voters,
        evidence=propose.evidence,
        ramps=exchange.ramps,
    )
    return HeldLock(
        attempt=height.attempt.index,
        entry=entry,
        entry_hash=entry_hash(entry),
        voters=exchange.group,
        results_held=True,
        offers=propose.offers,
        coordinator=height.attempt.coordinator,
        observers=tuple(propose.observers),
        owners=() if exchange.shape.is_gathered else exchange.owners,
    )


def on_bytes(height: Height, event: SegmentFact, state: str, now: Monotonic) -> Outcome | None:
    """What happened to the bytes of a segment, or what the outer worker answers to an order about them."""
    is_expected = height.own.expects(event)
    exchange = height.attempt.exchange
    if exchange is None or state not in AT_WORK or not is_expected or not exchange.is_of(event.round, event.attempt):
        return None
    before = exchange.num_moved
    found: list[SegmentOrder] | Contradiction = []
    match event:
        case SegmentReceived():
            found = exchange.on_segment(event)
        case SegmentSent():
            exchange.on_sent(event.peer, event.key)
        case TransferFailed():
            exchange.on_failed(event.peer, event.key, Monotonic(now + TRANSFER.seconds(height.limits)))
        case Reduced():
            found = exchange.on_reduced(event)
        case PassPrepared():
            found = exchange.on_prepared(event)
        case ReduceFailed():
            return _reduction_failed(exchange, event, height.me)
    if isinstance(found, Contradiction):
        return _contradicted(found)
    if exchange.num_moved != before:
        height.attempt.timers.restart(Mark.PROGRESS, now)
    return Told(tuple(found))


def _contradicted(found: Contradiction) -> GiveUp:
    """Results of other summands must not lead to an entry, nor shares of two payloads (X10)."""
    is_result = found.kind == KIND_RESULT
    other = "result is of other summands than were" if is_result else "share is of another payload than it"
    why = f"its {other} named in pass {found.pass_index}"
    orders = (ReportPeer(found.peer, "bad_root", why),)
    return GiveUp(f"{found.peer} contradicts what was said: {why}", (found.peer,), orders=orders)


def _reduction_failed(exchange: Exchange, event: ReduceFailed, me: PeerId) -> GiveUp:
    culprit = event.peer
    if event.result_segment is not None and exchange.owners[event.result_segment] != me:
        culprit = exchange.owners[event.result_segment]
    reports = (ReportPeer(culprit, "bad_payload", event.detail),) if culprit is not None else ()
    who = f" of {culprit}" if event.result_segment is not None and culprit is not None else ""
    blames = () if culprit is None else (culprit,)
    return GiveUp(f"reduction{who} failed: {event.detail}", blames, orders=reports)
