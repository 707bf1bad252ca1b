"""Makes owed work good: has the outer worker add kept work to FEEDBACK, or take it out (owed_work.py says which).

One ReturnWork at a time, while nothing is in flight: a contribution takes along all that FEEDBACK has when it is
formed.
"""

import dataclasses
from pathlib import PurePath

from dilocoxd.ids import PhaseId
from dilocoxd.machines.phase import inputs as ev, outputs as cmd
from dilocoxd.machines.phase.settings import SavedFeedback, StartingPoint
from dilocoxd.machines.phase.state import PhaseState
from dilocoxd.wire.local import outer_worker as local


def on_moved(m: PhaseState, event: ev.WorkMoved) -> None:
    """The chain has it no more, or again; FEEDBACK follows. What is in flight has its own fate and is not touched."""
    is_in_flight = m.flight is not None and m.flight.phase == event.phase and m.flight.stage != "settling"
    is_news = not is_in_flight and m.owed.move(event.phase, is_withdrawn=event.is_withdrawn)
    m.emit(cmd.FinishOrder(event.order, local.WorkReturned(0, event.phase) if is_news else None))


def give_up(m: PhaseState, phase: PhaseId) -> None:
    """What is offered will be settled as not included although we voted for an entry that names it: its work is kept.

    With `streaming` FEEDBACK does not get it: the trainers keep what was not included until a rollback replaces it.
    """
    flight = m.flight
    if flight is None or flight.phase != phase or flight.stage != "offered":
        return
    if m.settings.delay == "streaming":
        m.emit(cmd.ForgetWork(phase))
    else:
        m.owed.kept[phase] = flight.content


def work_needed(m: PhaseState) -> frozenset[PhaseId] | None:
    """Kept work that must not be dropped: FEEDBACK has still to get or to lose it, or would have to after a restart,
    from the file or from zero. None: not known before training begins, so nothing may be dropped."""
    if not m.is_begun:
        return None
    restored = [{}] if m.owed.saved is None else [{}, m.owed.saved.content]
    return m.queue.returning | m.owed.needed([m.owed.feedback, *restored])


def begin(m: PhaseState, event: ev.TrainingBegun) -> PhaseId | None:
    """First look at chain and kept work. Returns the phase under which the feedback file may be restored.

    What was formed after the file was written, and is in the chain or may come into it, has taken along what the file
    holds: then nothing of the file is used. What we never voted for is in no entry, and its work is not kept.
    """
    start, saved, settled = event.start, event.saved, m.record.last_settled
    m.owed.saved = saved
    m.owed.begin(start.own_phases, start.kept)
    if m.settings.delay == "streaming":  # in flight at the crash: the trainers have it (see give_up)
        for phase in sorted(set(start.kept) - start.own_phases):
            if settled is None or phase > settled:
                m.emit(cmd.ForgetWork(phase))
                del m.owed.kept[phase]
    known = {*start.own_phases, *start.kept, *start.unreadable}
    if known and (settled is None or max(known) > settled):
        m.persist(last_settled=max(known))
    # The record can be lost, with a disk or alone: chain, kept work and feedback remember which numbers were used.
    free = max((PhaseId(number + 1) for number in known | _numbers_in(saved)), default=m.next_phase)
    m.next_phase = m.settings.volumes.first_phase(max(m.next_phase, free))
    if saved is None or any(phase > saved.phase for phase in start.unreadable - start.own_phases):
        return None  # FEEDBACK could not lose what such work carries, were its entry finished
    return _restorable(saved, known, start.own_phases)


def _numbers_in(saved: SavedFeedback | None) -> set[PhaseId]:
    """Of all phases that the feedback file speaks of."""
    if saved is None:
        return set()
    return {saved.phase, *saved.content, *(() if saved.in_flight is None else (saved.in_flight,))}


def _restorable(saved: SavedFeedback, known: set[PhaseId], chain: frozenset[PhaseId]) -> PhaseId | None:
    """The file is good for both fates of what was in flight when it was written: its number means included."""
    later = {phase for phase in known if phase > saved.phase}
    if not later:
        return saved.phase
    if later != {saved.in_flight}:
        return None
    return saved.in_flight if saved.in_flight in chain else saved.phase


def restoring(m: PhaseState, start: StartingPoint, phase: PhaseId) -> local.RestoreSite:
    """The request that loads the file as that of `phase`; what was in flight and is in the chain is given up only as
    far as its entry counted it."""
    request = local.RestoreSite(0, m.settings.feedback_path, phase)
    newest, saved = start.newest, m.owed.saved
    if newest is None or saved is None or not (phase == newest.phase == saved.in_flight):
        return request
    return dataclasses.replace(
        request,
        kept_path=str(_work_path(m, phase)) if newest.is_kept else "",
        results_path=newest.results_path,
        offset=newest.offset,
        lowrank_r=newest.lowrank_r,
        place=newest.place,
    )


def _work_path(m: PhaseState, phase: PhaseId) -> PurePath:
    return PurePath(m.settings.own_work_directory) / f"{phase}.work"


def restored(m: PhaseState, phase: PhaseId) -> None:
    """The feedback file was loaded as that of `phase`; what was in flight took all of it along if it was included."""
    assert m.owed.saved is not None
    if phase != m.owed.saved.in_flight:
        m.owed.add(m.owed.saved.content, 1)


def lost(m: PhaseState) -> None:
    """FEEDBACK starts from zero, and the file will never be restored: what it held was taken along."""
    m.owed.saved = None


def forget_flight(m: PhaseState) -> None:
    """An entry is taken back: what is on its way, unless its settlement is under way already, is owed no more."""
    if m.flight is not None and m.flight.stage != "settling":
        m.flight.forgets = True


def forgotten(m: PhaseState) -> None:
    """FEEDBACK is zero, and nothing that it held is owed; but what was formed meanwhile stays until it is settled,
    without being offered, and is forgotten then: what spoiled the state may be in it. The file must not bring it back
    after a restart."""
    forget_flight(m)
    if m.flight is None or m.flight.stage == "forming":
        m.owed.feedback.clear()
    settled = m.record.last_settled
    if m.is_begun and m.owed.saved is not None and settled is not None:
        m.queue.add(local.SaveSite(0, m.settings.feedback_path, settled))


def reconcile(m: PhaseState) -> bool:
    """Queue the next ReturnWork if FEEDBACK does not have what it must; True if so."""
    if not m.is_begun or m.is_leaving or m.flight is not None or m.queue.returning:
        return False
    difference = m.owed.difference(m.owed.feedback)
    if not difference:
        return False
    phase = min(difference)
    m.queue.add(local.ReturnWork(0, phase, str(_work_path(m, phase)), is_withdrawn=difference[phase] < 0))
    return True


def done(m: PhaseState, request: local.ReturnWork) -> None:
    """FEEDBACK has it, or (withdrawn) has it no more; save that soon."""
    m.owed.add(m.owed.kept[request.phase], -1 if request.is_withdrawn else 1)
    settled = m.record.last_settled
    if m.settings.save_every_rounds and settled is not None and not m.owed.difference(m.owed.feedback):
        m.queue.add(local.SaveSite(0, m.settings.feedback_path, settled))


def refused(m: PhaseState, request: local.ReturnWork, reason: str) -> None:
    """What was kept is not usable: this work is lost."""
    del m.owed.kept[request.phase]
    m.emit(cmd.DropContribution(request.phase, f"a fork dropped it and it cannot be put back: {reason}"))
