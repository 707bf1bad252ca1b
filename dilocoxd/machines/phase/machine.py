"""Decides what the trainers and the outer worker of this site do next (docs/internals.md section 2).

Rules: at most one contribution is in flight; every (peer, phase) is settled once; phase numbers are durable before they
are used; operations of the outer worker run one at a time and never change the anchor under a reader.
State in state.py, outer worker in outer_worker.py, trainers in trainers.py.
"""

import random
from typing import assert_never

from dilocoxd.ids import Monotonic, RoundIndex
from dilocoxd.machines.phase import (
    inputs as ev,
    outer_worker as phase_outer,
    outputs as cmd,
    repayment,
    trainers as phase_trainer,
)
from dilocoxd.machines.phase.settings import PhaseSettings, SiteRecord
from dilocoxd.machines.phase.state import Departure, PhaseState
from dilocoxd.machines.phase.trainer_state import TrainerState
from dilocoxd.wire.local import outer_worker as local


class PhaseMachine:
    """Sans-io: `handle` is the only way state changes; time is an argument."""

    def __init__(self, settings: PhaseSettings, record: SiteRecord, lot: random.Random) -> None:
        """`lot` draws which contributions are looked at."""
        self.state = PhaseState(settings, record, lot)

    def handle(self, event: ev.PhaseEvent, *, now: Monotonic) -> list[cmd.PhaseCommand]:
        """What to do about `event`, in this order, each finished before the next."""
        m = self.state
        m.now = now
        match event:
            case ev.OuterStarted() | ev.OuterLost() | ev.OperationDone() | ev.OperationRefused():
                phase_outer.on_outer(m, event)
            case ev.TrainerConnected() | ev.TrainerSaid() | ev.TrainerLost():
                phase_trainer.on_trainer(m, event)
            case ev.EntryCommitted() | ev.LoadOrdered() | ev.ContributionAbandoned() | ev.TrainingBegun():
                self._on_order(event)
            case ev.WorkMoved():
                repayment.on_moved(m, event)
            case ev.PauseOrdered() | ev.ResumeOrdered():
                m.pause_reason = (event.reason or "the operator") if isinstance(event, ev.PauseOrdered) else ""
            case ev.OthersDue():
                m.others = event
            case ev.LeaveOrdered():
                m.departure = Departure.ASKED if m.departure is Departure.NONE else m.departure
            case ev.TimeLost(seconds):
                m.trainer.last_sign = Monotonic(min(now, m.trainer.last_sign + seconds))
            case ev.PhaseDeadlineReached():
                phase_trainer.on_deadline(m)
            case _:
                assert_never(event)
        self._advance()
        out, m.out = m.out, []
        return out

    def next_deadline(self) -> Monotonic | None:
        """When to send DeadlineReached: from then on the trainers' silence is a hang."""
        return self.state.trainer.silent_until(self.state.settings)

    @property
    def waiting_for(self) -> str:
        """What goes on behind `waits for`; empty while training goes on undisturbed."""
        m, trainer = self.state, self.state.trainer
        if not m.queue.is_attached:
            return "the outer worker to start"
        if m.shared is None:
            return "the shared state to be loaded"
        if m.pause_reason:
            return f"the end of a pause ({m.pause_reason})"
        if m.soundness.spoiled is not None:
            return f"a newer shared state ({m.soundness.spoiled.entries} made the loss not finite)"
        if not m.is_begun:
            return "the run to be caught up with, before training starts"
        if trainer.state is TrainerState.ABSENT:
            return "the trainers to start"
        if trainer.state in (TrainerState.DUE, TrainerState.WAITING):
            return phase_trainer.boundary_obstacle(m)
        if trainer.state is TrainerState.IDLE:
            return "the committed entry to be applied"
        is_busy = trainer.state is TrainerState.TRAINING and not trainer.taking and not trainer.is_evaluating
        return "" if is_busy else trainer.owes

    def check(self) -> None:
        """Assert every invariant (tests and simulations call it after each event)."""
        m, flight, trainer, running = self.state, self.state.flight, self.state.trainer, self.state.queue.running
        settled = m.record.last_settled
        assert (flight is not None and flight.stage == "forming") == m.queue.is_forming
        if flight is not None:
            assert settled is None or flight.phase > settled, "a settled phase flies again"
            assert flight.phase < m.next_phase, "a number was used before it was taken"
        if running is not None and running.writes_anchor:
            assert not trainer.reads_anchor, "the anchor changes under a reader"
            assert not m.queue.is_copying, "the anchor changes before its base is copied"
        if m.is_trainer_active:
            assert trainer.present_phase.number < m.record.phases_reserved, "a phase number is not durable"
        if trainer.state is TrainerState.WAITING:
            assert m.settings.delay == "none"

    # --- orders of the daemon -----------------------------------------------------------------------------------------

    def _on_order(
        self, event: ev.EntryCommitted | ev.LoadOrdered | ev.ContributionAbandoned | ev.TrainingBegun
    ) -> None:
        m = self.state
        match event:
            case ev.EntryCommitted():
                self._on_entry(event)
            case ev.LoadOrdered(order, directory, settles, is_included, forgets_feedback):
                m.settle(settles, m.expected or RoundIndex(0), owned=() if is_included else None)
                if forgets_feedback:  # it may be settled while the state is loaded
                    repayment.forget_flight(m)
                m.queue.add(local.LoadState(0, directory, forgets_feedback), order=order)
            case ev.ContributionAbandoned():
                self._on_abandoned(event)
            case ev.TrainingBegun():
                self._on_begun(event)

    def _on_entry(self, event: ev.EntryCommitted) -> None:
        m, entry = self.state, event.entry
        if m.expected is None or entry.round != m.expected:
            have = "no state" if m.expected is None else f"state {m.expected}"
            m.emit(cmd.RefuseOrder(event.order, "out_of_order", f"entry {entry.round} does not follow {have}"))
            return
        m.settle(entry.settles, entry.round, owned=entry.owned if entry.is_included else None, entry=entry)
        m.queue.add(local.ApplyResult(0, entry.round, entry.path, entry.offset, entry.lowrank_r), order=event.order)
        m.num_contributors = entry.num_contributors

    def _on_abandoned(self, event: ev.ContributionAbandoned) -> None:
        m = self.state
        if event.is_voted:
            repayment.give_up(m, event.phase)
        m.settle(event.phase, m.expected or RoundIndex(0), owned=None)
        if m.flight is not None and m.flight.phase == event.phase and m.flight.stage == "settling":
            m.flight.orders.append(event.order)
        else:
            m.emit(cmd.FinishOrder(event.order, None))

    def _on_begun(self, event: ev.TrainingBegun) -> None:
        m = self.state
        m.evaluation_due = m.settings.evaluate_every_rounds > 0
        if m.is_begun:
            m.emit(cmd.FinishOrder(event.order, None))
            return
        phase = repayment.begin(m, event)
        if phase is not None:
            m.queue.add(repayment.restoring(m, event.start, phase), order=event.order)
            return
        repayment.lost(m)
        m.is_begun = True
        m.emit(cmd.FinishOrder(event.order, None))

    def _advance(self) -> None:
        m = self.state
        while not m.has_failed and m.departure is not Departure.LEFT:
            if repayment.reconcile(m) or phase_outer.pump(m) or phase_trainer.direct(m):
                continue
            if not m.is_leaving or m.is_trainer_active or not m.queue.is_idle:
                return
            self._leave()

    def _leave(self) -> None:
        """The trainers have stopped and nothing is queued: save what only this site has, then go.

        An outer worker that is down has left it in the buffers, and the next one saves it. When there is no next one,
        its restart budget is spent and the site fails.
        """
        m, settled = self.state, self.state.record.last_settled
        saved = m.owed.saved
        is_saved = saved is not None and (saved.phase, saved.content) == (settled, m.owed.feedback)
        is_new = m.flight is not None or not is_saved
        may_save = m.is_begun and m.queue.was_attached and m.departure is not Departure.SAVING
        if settled is not None and is_new and may_save:
            m.departure = Departure.SAVING
            m.queue.add(local.SaveSite(0, m.settings.feedback_path, settled))
            return
        m.departure = Departure.LEFT
        m.emit(cmd.FinishLeaving())
