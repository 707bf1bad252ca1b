"""The phase machine's books of work that left the chain with a fork (rule R-b of protocol/06-rounds.md).

So does what is given up after our vote: on another branch its entry may have been committed, and a fork may bring it.
The record says which contributions belong into the error feedback (durable before the log is rolled back); `held` says
which of them FEEDBACK has. The difference is made good one ReturnWork at a time while nothing is in flight, and again
after a restart. While a contribution is in the chain nothing of it belongs into the feedback, whatever the record says.

A contribution takes along all that FEEDBACK has when it is formed. Once it is in an entry, or owed as a whole, that
(`carried`) is its affair: FEEDBACK is Returned(held) - Returned(carried) and what was settled as not included since.
So a feedback that starts from zero `holds` what was carried, and the difference to what it should have comes back.
"""

from pathlib import PurePath

from dilocoxd.ids import PhaseId
from dilocoxd.rounds import phase_events as ev
from dilocoxd.rounds.phase_state import PhaseState
from dilocoxd.wire import local

NONE_YET = -1


def on_moved(m: PhaseState, event: ev.WorkMoved) -> None:
    """Change the record; FEEDBACK follows. What is in flight has its own fate and is not touched."""
    is_in_flight = m.flight is not None and m.flight.phase == event.phase and m.flight.stage != "settling"
    is_returned = event.phase in _wanted(m)
    is_news = not is_in_flight and is_returned == event.is_withdrawn
    if is_news and event.is_withdrawn:
        m.persist(returned=tuple(item for item in m.record.returned if item[0] != event.phase))
    elif is_news:
        _owe(m, event.phase, _next_carrier(m))
        took_along(m, event.phase)
    m.emit(ev.FinishOrder(event.order, local.WorkReturned(0, event.phase) if is_news else None))


def give_up(m: PhaseState, phase: PhaseId) -> None:
    """What is offered will be settled as not included although we voted for an entry that names it: owed from now on.

    With `streaming` FEEDBACK does not get it: the trainers keep what was not included until a rollback replaces it.
    """
    flight = m.flight
    if flight is None or flight.phase != phase or flight.stage != "offered" or m.settings.delay == "streaming":
        return
    flight.is_returned = True
    _owe(m, phase, _next_carrier(m))
    took_along(m, phase)


def took_along(m: PhaseState, phase: PhaseId) -> None:
    """This contribution is in an entry, or owed as a whole: what it was formed with has left FEEDBACK with it."""
    if phase == m.record.formed_phase != m.record.carried_by:
        m.persist(carried_by=phase, carried=m.record.formed_with)


def _owe(m: PhaseState, phase: PhaseId, carrier: PhaseId) -> None:
    """A contribution that belongs into the error feedback from now on; the first phase that could carry it on."""
    m.persist(returned=tuple(sorted((*m.record.returned, (phase, carrier)))))


def _next_carrier(m: PhaseState) -> PhaseId:
    """The first phase whose contribution is formed from now on."""
    flying = m.flight.phase if m.flight is not None else None
    known = (flying, m.record.last_settled, m.record.formed_phase)  # who crashed may have formed one and not settled it
    return PhaseId(max(phase if phase is not None else NONE_YET for phase in known) + 1)


def not_carried_by(m: PhaseState, phase: PhaseId) -> tuple[tuple[PhaseId, PhaseId], ...]:
    """The record's `returned` once this contribution is formed: it does not carry what FEEDBACK did not have yet."""
    later = PhaseId(phase + 1)
    return tuple((item, carrier if item in m.held else max(carrier, later)) for item, carrier in m.record.returned)


def _wanted(m: PhaseState) -> set[PhaseId]:
    return {phase for phase, _ in m.record.returned}


def work_needed(m: PhaseState) -> frozenset[PhaseId]:
    """Contributions whose kept work FEEDBACK has still to get or to lose, or would have to after a restart."""
    wanted = _wanted(m)
    needed = m.queue.returning | (wanted ^ m.held) | (wanted ^ frozenset(m.record.carried))
    if m.record.saved_phase is not None:
        needed |= wanted ^ m.saved_held
    if m.flight is not None:
        needed |= wanted ^ frozenset(m.record.formed_with)
    return frozenset(needed)


def begin(m: PhaseState, own_phases: frozenset[PhaseId], kept: frozenset[PhaseId]) -> None:
    """First look at the chain: what came back into it is owed no more.

    What was formed last and never settled may have our vote (its work is kept then): owed until an entry names it.
    """
    left = tuple(item for item in m.record.returned if item[0] not in own_phases)
    if left != m.record.returned:
        m.persist(returned=left)
    formed, settled = m.record.formed_phase, m.record.last_settled
    if formed is None:
        return
    is_known = formed in own_phases or formed in _wanted(m)
    if not is_known and formed in kept and (settled is None or formed > settled) and m.settings.delay != "streaming":
        _owe(m, formed, PhaseId(formed + 1))
        is_known = True
    if is_known:
        took_along(m, formed)


def is_restorable(m: PhaseState) -> bool:
    """Whether nothing that was formed after the feedback was saved took it along."""
    taken_by, saved = m.record.carried_by, m.record.saved_phase
    return taken_by is None or taken_by == m.record.saved_in_flight or (saved is not None and taken_by <= saved)


def restored(m: PhaseState, phase: PhaseId, returned: tuple[PhaseId, ...]) -> None:
    """The error feedback on disk was loaded as that of `phase`; it has these phases in it.

    It also has what was in flight when it was saved, unless that is `phase`: in vain, but an entry may still name it.
    """
    m.held = m.saved_held = frozenset(returned)
    flying = m.record.saved_in_flight
    if flying is not None and flying != phase:
        m.held |= {flying}
        if flying not in _wanted(m):
            _owe(m, flying, PhaseId(flying + 1))
        took_along(m, flying)


def lost(m: PhaseState) -> None:
    """The error feedback starts from zero, and that on disk will never be restored: it has another history."""
    m.held = frozenset(m.record.carried)
    m.saved_held = frozenset()
    if m.record.saved_phase is not None:
        m.persist(saved_phase=None, saved_in_flight=None)


def reconcile(m: PhaseState) -> bool:
    """Queue the next ReturnWork if FEEDBACK does not have what the record says; True if so."""
    if not m.is_begun or m.is_leaving or m.flight is not None or m.queue.returning:
        return False
    wanted = _wanted(m)
    differing = sorted(wanted ^ m.held)
    if not differing:
        return False
    phase = differing[0]
    path = PurePath(m.settings.own_work_directory) / f"{phase}.work"
    m.queue.add(local.ReturnWork(0, phase, str(path), is_withdrawn=phase not in wanted))
    return True


def done(m: PhaseState, request: local.ReturnWork) -> None:
    """FEEDBACK has it, or (withdrawn) has it no more; save that soon."""
    m.held = m.held - {request.phase} if request.is_withdrawn else m.held | {request.phase}
    settled = m.record.last_settled
    if m.settings.save_every_rounds and settled is not None and _wanted(m) == m.held:
        m.queue.add(local.SaveSite(0, m.settings.feedback_path, settled))


def refused(m: PhaseState, request: local.ReturnWork, reason: str) -> None:
    """What was kept is not usable: this work is lost, and nothing is owed or taken back any more."""
    m.held = m.held - {request.phase}
    m.persist(returned=tuple(item for item in m.record.returned if item[0] != request.phase))
    m.emit(ev.DropContribution(request.phase, f"a fork dropped it and it cannot be put back: {reason}"))
