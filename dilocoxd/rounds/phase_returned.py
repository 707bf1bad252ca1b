"""The phase machine's books of work that left the chain with a fork (rule R-b of protocol/06-rounds.md).

So does what is given up after our vote: on another branch its entry may have been committed, and a fork may bring it.
The record says which contributions belong into the error feedback (durable before the log is rolled back); `held` says
which of them FEEDBACK has. The difference is made good one ReturnWork at a time while nothing is in flight, and again
after a restart. While a contribution is in the chain nothing of it belongs into the feedback, whatever the record says.
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


def _owe(m: PhaseState, phase: PhaseId, carrier: PhaseId) -> None:
    """A contribution that belongs into the error feedback from now on; the first phase that could carry it on."""
    m.persist(returned=tuple(sorted((*m.record.returned, (phase, carrier)))))


def _next_carrier(m: PhaseState) -> PhaseId:
    """The first phase whose contribution is formed from now on."""
    newest = m.flight.phase if m.flight is not None else m.record.last_settled
    return PhaseId((newest if newest is not None else NONE_YET) + 1)


def _wanted(m: PhaseState) -> set[PhaseId]:
    return {phase for phase, _ in m.record.returned}


def work_needed(m: PhaseState) -> frozenset[PhaseId]:
    """Contributions whose kept work FEEDBACK has still to get or to lose, or would have to after a restart."""
    saved = m.saved_held if m.settings.save_every_rounds else m.held
    wanted = _wanted(m)
    return frozenset((wanted ^ m.held) | (wanted ^ saved))


def begin(m: PhaseState, own_phases: frozenset[PhaseId]) -> None:
    """First look at the chain: what came back into it is owed no more."""
    left = tuple(item for item in m.record.returned if item[0] not in own_phases)
    if left != m.record.returned:
        m.persist(returned=left)


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


def lost(m: PhaseState, newest_own_phase: PhaseId | None) -> None:
    """The error feedback starts from zero. Work that a later contribution may have carried on must not come twice."""
    formed = m.record.formed_phase
    newest = max(phase if phase is not None else NONE_YET for phase in (newest_own_phase, formed))
    left = tuple(item for item in m.record.returned if item[1] > newest)
    if left != m.record.returned:
        m.persist(returned=left)
    m.held = frozenset()


def reconcile(m: PhaseState) -> bool:
    """Queue the next ReturnWork if FEEDBACK does not have what the record says; True if so."""
    if not m.is_begun or m.is_leaving or m.flight is not None or m.queue.is_returning:
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
