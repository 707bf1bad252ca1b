"""Feeds what happened to bytes and to orders of the outer worker into the running exchange. Functions on `Core`.

Source: protocol/07-exchange.md.
"""

from dilocoxd.ids import Monotonic
from dilocoxd.rounds import core as states
from dilocoxd.rounds.attempts import fail_attempt
from dilocoxd.rounds.commands import ReportPeer
from dilocoxd.rounds.core import Core
from dilocoxd.rounds.events import PassPrepared, Reduced, ReduceFailed, SegmentReceived, SegmentSent, TransferFailed


def on_transfer(core: Core, event: SegmentReceived | SegmentSent | TransferFailed) -> None:
    exchange = core.current_exchange(event.key.round, event.key.attempt)
    if exchange is None or core.state not in (states.EXCHANGING, states.VOTING):
        return
    if isinstance(event, SegmentReceived):
        core.emit(*exchange.on_segment(event.peer, event.key, event.sha256, core.now))
    elif isinstance(event, SegmentSent):
        exchange.on_sent(event.peer, event.key, core.now)
    else:
        exchange.on_failed(event.peer, event.key, Monotonic(core.now + core.limits.transfer_retry_s))


def on_worker(core: Core, event: Reduced | PassPrepared | ReduceFailed) -> None:
    segment = None if isinstance(event, PassPrepared) else event.segment
    order = (event.round, event.attempt, event.pass_index, segment)
    is_answer = order in core.outstanding
    core.outstanding.discard(order)
    exchange = core.current_exchange(event.round, event.attempt)
    if not is_answer or exchange is None or core.state not in (states.EXCHANGING, states.VOTING):
        return
    if isinstance(event, Reduced):
        core.emit(*exchange.on_reduced(event, core.now))
    elif isinstance(event, PassPrepared):
        core.emit(*exchange.on_prepared(event, core.now))
    else:
        culprit = event.peer
        if event.result_segment is not None and exchange.owners[event.result_segment] != core.me:
            culprit = exchange.owners[event.result_segment]
        if culprit is not None:
            core.emit(ReportPeer(culprit, "bad_payload", event.detail))
        who = f" of {culprit}" if event.result_segment is not None and culprit is not None else ""
        fail_attempt(core, f"reduction{who} failed: {event.detail}", () if culprit is None else (culprit,))
