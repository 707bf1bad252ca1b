"""The phase machine's outer-worker side: what its answers, refusals and restarts mean."""

from typing import assert_never

from dilocoxd.ids import RoundIndex
from dilocoxd.machines.phase import inputs as ev, outputs as cmd, repayment
from dilocoxd.machines.phase.outer_queue import Operation
from dilocoxd.machines.phase.settings import SavedFeedback
from dilocoxd.machines.phase.state import PhaseState
from dilocoxd.machines.phase.vocabulary import OuterAnswer
from dilocoxd.wire.local import outer_worker as local

OuterEvent = ev.OuterStarted | ev.OuterLost | ev.OperationDone | ev.OperationRefused


def on_outer(m: PhaseState, event: OuterEvent) -> None:
    """Take in one event of the outer worker; an answer to something that no longer runs is stale."""
    running = m.queue.running
    match event:
        case ev.OuterLost():
            m.queue.is_attached = False
        case ev.OuterStarted(state):
            m.queue.attach()
            _resume(m, state)
        case ev.OperationDone(number, answer):
            if running is not None and running.number == number:
                _finish(m, m.queue.finish(), answer)
        case ev.OperationRefused(number, kind, detail):
            if running is not None and running.number == number:
                _refuse(m, m.queue.finish(), kind, detail)
        case _:
            assert_never(event)


def pump(m: PhaseState) -> bool:
    """Start the next operation if one may run; True if so."""
    operation = m.queue.start_next(
        is_anchor_read=m.trainer.reads_anchor,
        may_save=m.is_leaving or m.flight is None,
        content=tuple(local.ContentItem(phase, times) for phase, times in sorted(m.owed.feedback.items())),
    )
    if operation is not None:
        m.emit(cmd.RunOuter(operation.number, operation.request))
    return operation is not None


def _resume(m: PhaseState, state: local.StateReady) -> None:
    """Ask again what was running, unless the journal says that it was done."""
    running = m.queue.running
    request = running.request if running is not None else None
    if isinstance(request, local.ApplyResult) and state.is_loaded and state.round == request.round + 1:
        _finish(m, m.queue.finish(), state)
        return
    known = m.shared
    if known is not None and not isinstance(request, local.LoadState):
        is_same = state.is_loaded and (state.round, state.state_digest) == (known.round, known.state_digest)
        if not is_same:
            found = f"state {state.round}" if state.is_loaded else "no state"
            m.fail(f"the outer worker came back with {found} instead of state {known.round}; restart the daemon")
            return
    if running is not None:
        m.emit(cmd.RunOuter(running.number, running.request))


def _finish(m: PhaseState, operation: Operation, answer: OuterAnswer) -> None:
    match answer:
        case local.StateReady():
            _state_ready(m, operation, answer)
        case local.BaseCopied():
            if not m.queue.is_copying and m.trainer.phase is not None:
                m.trainer.phase.base_round = answer.round
        case local.ContributionFormed():
            _formed(m, answer)
        case local.Settled():
            _settled(m)
        case local.SiteDone():
            if isinstance(operation.request, local.SaveSite):
                is_formed = m.flight is not None and m.flight.stage != "forming"
                in_flight = m.flight.phase if m.flight is not None and is_formed else None
                content = {item.phase: item.times for item in operation.request.content}
                m.owed.saved = SavedFeedback(operation.request.phase, in_flight, content)
            else:
                assert isinstance(operation.request, local.RestoreSite)
                _restored(m, operation.request, answer)
        case local.WorkReturned():
            assert isinstance(operation.request, local.ReturnWork)
            repayment.done(m, operation.request)
        case _:
            assert_never(answer)
    if operation.order is not None:
        m.emit(cmd.FinishOrder(operation.order, answer))


def _restored(m: PhaseState, request: local.RestoreSite, answer: local.SiteDone) -> None:
    if answer.is_restored:
        repayment.restored(m, request.phase)
    else:
        repayment.lost(m)
    m.is_begun = True


def _refuse(m: PhaseState, operation: Operation, kind: str, detail: str) -> None:
    """Nothing was changed by `operation`, unless it says so. What we cannot do without ends the site."""
    match operation.request:
        case local.FormContribution():
            m.drop_flight(f"{kind}: {detail}", is_poisoned=True)
        case local.LoadState():
            m.shared = None  # it may have begun to write
        case local.ApplyResult() if kind == "not_loaded":
            m.shared = None  # its payload could not be read to the end
        case local.ApplyResult() | local.SaveSite():
            pass  # a full disk costs at most the residual at a crash; the next save tries again
        case local.RestoreSite():
            repayment.lost(m)
            m.is_begun = True
        case local.ReturnWork():
            repayment.refused(m, operation.request, f"{kind}: {detail}")
        case local.Settle() | local.CopyBase():
            m.fail(f"the outer worker refused {type(operation.request).__name__}: {kind}: {detail}")
    if operation.order is not None:
        m.emit(cmd.RefuseOrder(operation.order, kind, detail))


def _state_ready(m: PhaseState, operation: Operation, answer: local.StateReady) -> None:
    m.shared = answer
    if m.soundness.replaced() and m.is_trainer_active:
        m.trainer.must_replace = True  # what stands in the trainers is spoiled, whatever they owe
    if isinstance(operation.request, local.LoadState):
        if operation.request.forgets_feedback:
            repayment.forgotten(m)
        # A trainer that owes a merge gets the new anchor with it; any other must drop what it built on the old one. So
        # must one that mixes: nobody knows which fragments moved, and which of them hold its own progress.
        if m.is_trainer_active and (not m.trainer.needs_merge or m.settings.delay == "streaming"):
            m.trainer.must_replace = True
        return
    if m.settings.evaluates(answer.round):
        m.evaluation_due = True
    every, settled = m.settings.save_every_rounds, m.record.last_settled
    # Before training begins FEEDBACK is empty, and the saved one is still to be restored.
    is_saved = m.owed.saved is not None and m.owed.saved.phase == settled
    if m.is_begun and every and answer.round % every == 0 and settled is not None and not is_saved:
        m.queue.add(local.SaveSite(0, m.settings.feedback_path, settled))


def _formed(m: PhaseState, answer: local.ContributionFormed) -> None:
    flight = m.flight
    assert flight is not None and flight.phase == answer.phase
    if not answer.is_finite:
        m.drop_flight(f"the pseudo-gradient is not finite in {answer.detail}", is_poisoned=True)
        return
    flight.stage = "offered"
    # One number ahead, so that the next boundary need not wait for the disk.
    m.owed.add({flight.phase: 1}, 1)
    flight.content = dict(m.owed.feedback)
    m.persist(phases_reserved=max(m.record.phases_reserved, m.next_phase + 1))
    if flight.forgets:  # offered, it would be there for the very entry that takes the place
        m.emit(cmd.DropContribution(flight.phase, "an entry was taken back while it was formed"))
        m.settle(flight.phase, m.expected or RoundIndex(0), owned=None)
        return
    m.emit(
        cmd.OfferContribution(
            flight.phase, flight.base_round, flight.inner_steps, flight.tokens, flight.lowrank_r, answer
        )
    )


def _settled(m: PhaseState) -> None:
    assert m.flight is not None and m.flight.stage == "settling"
    flight, m.flight = m.flight, None
    # The entry that has it is in the log. With `streaming` what is kept besides is owed only if it was settled.
    m.persist(last_settled=flight.phase, is_derived=flight.is_included and m.settings.delay != "streaming")
    if flight.is_included:
        m.owed.add(flight.content, -1)
    elif flight.forgets or m.settings.delay == "streaming":
        m.owed.feedback.clear()  # with streaming the trainers keep what they did; the outer worker forgets the rest
    for order in flight.orders:
        m.emit(cmd.FinishOrder(order, None))
