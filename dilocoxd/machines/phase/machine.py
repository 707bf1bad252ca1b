"""Decides what the trainers and the outer worker of this site do next (docs/internals.md section 2).

Rules: at most one contribution is in flight; every (peer, phase) is settled once; phase numbers are durable before they
are used; operations of the outer worker run one at a time and never change the anchor under a reader.
State in phase_state.py, outer worker in phase_outer.py, trainers in phase_trainer.py.
"""

from typing import assert_never

from dilocoxd.ids import Monotonic, PhaseId, RoundIndex
from dilocoxd.rounds import phase_events as ev, phase_outer, phase_returned, phase_trainer
from dilocoxd.rounds.phase_state import PhaseState
from dilocoxd.rounds.trainer_track import TrainerState
from dilocoxd.wire import local

ROUNDS_UNDECIDED = 1
"""An offer may name a round this much later than the state it was formed on (entries durable but not yet applied)."""


def feedback_to_restore(record: ev.SiteRecord, height: RoundIndex, newest_own_phase: PhaseId | None) -> PhaseId | None:
    """The phase under which the error feedback on disk may be restored, so that nothing is counted twice; else None.

    The file is useless once a later phase of ours is in the chain (that payload contained its feedback), and while it
    is unknown whether the last one offered is: the round it was offered for must be decided. The file of a site that
    left with a contribution in flight is good for both fates: its number means included, the settled one before not.
    """
    saved, in_flight, formed = record.saved_phase, record.saved_in_flight, record.formed_phase
    if saved is None:
        return None
    is_decided = record.formed_round is not None and height > record.formed_round + ROUNDS_UNDECIDED
    if newest_own_phase is not None and newest_own_phase > saved:
        is_last = formed == in_flight or is_decided
        return in_flight if newest_own_phase == in_flight and is_last else None
    return saved if formed is None or formed <= saved or is_decided else None


class PhaseMachine:
    """Sans-io: `handle` is the only way state changes; time is an argument."""

    def __init__(self, settings: ev.PhaseSettings, record: ev.SiteRecord) -> None:
        self.state = PhaseState(
            settings=settings,
            record=record,
            next_phase=PhaseId(record.phases_reserved),
            inner_steps=settings.inner_steps,
            lowrank_r=settings.lowrank_r,
        )

    def handle(self, event: ev.PhaseEvent, *, now: Monotonic) -> list[ev.PhaseCommand]:
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
                phase_returned.on_moved(m, event)
            case ev.PauseOrdered() | ev.ResumeOrdered():
                m.pause_reason = (event.reason or "the operator") if isinstance(event, ev.PauseOrdered) else ""
            case ev.OthersDue(at, step_seconds):
                m.others_due_at, m.others_pace = at, step_seconds
            case ev.LeaveOrdered():
                m.is_leaving = True
            case ev.TimeLost(seconds):
                m.trainer.last_sign = Monotonic(min(now, m.trainer.last_sign + seconds))
            case ev.DeadlineReached():
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
        """One plain sentence; empty while training goes on undisturbed."""
        m, trainer = self.state, self.state.trainer
        if not m.has_outer:
            return "Waiting for the outer worker to start."
        if m.shared is None:
            return "Waiting for the shared state to be loaded."
        if m.pause_reason:
            return f"Paused: {m.pause_reason}."
        if not m.is_begun:
            return "Waiting to catch up with the run before training starts."
        if trainer.state is TrainerState.ABSENT:
            return "Waiting for the trainers to start."
        if trainer.state in (TrainerState.DUE, TrainerState.WAITING):
            return phase_trainer.boundary_obstacle(m)
        if trainer.state is TrainerState.IDLE:
            return "Waiting for the committed entry to be applied."
        is_busy = trainer.state is TrainerState.TRAINING and not trainer.taking and not trainer.is_evaluating
        return "" if is_busy else f"Waiting for {trainer.owes}."

    def check(self) -> None:
        """Assert every invariant (tests and simulations call it after each event)."""
        m, flight, trainer, running = self.state, self.state.flight, self.state.trainer, self.state.queue.running
        settled = m.record.last_settled
        assert (flight is not None and flight.stage == "forming") == m.queue.is_forming
        if flight is not None:
            assert settled is None or flight.phase > settled, "a settled phase flies again"
            assert flight.phase < m.next_phase, "a number was used before it was taken"
            is_durable = m.record.formed_phase == flight.phase
            assert flight.stage == "forming" or is_durable, "offered before it was durable"
        if running is not None and running.writes_anchor:
            assert not trainer.reads_anchor, "the anchor changes under a reader"
            assert not m.queue.is_copying, "the anchor changes before its base is copied"
        if m.is_trainer_active:
            assert trainer.phase < m.record.phases_reserved, "a phase number is not durable"
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
            case ev.LoadOrdered(order, directory, settles, is_included):
                m.settle(settles, m.expected or RoundIndex(0), owned=() if is_included else None)
                m.queue.add(local.LoadState(0, directory), order=order)
                m.expected = None
            case ev.ContributionAbandoned():
                self._on_abandoned(event)
            case ev.TrainingBegun():
                self._on_begun(event)

    def _on_entry(self, event: ev.EntryCommitted) -> None:
        m = self.state
        if m.expected is None or event.round != m.expected:
            have = "no state" if m.expected is None else f"state {m.expected}"
            m.emit(ev.RefuseOrder(event.order, "out_of_order", f"entry {event.round} does not follow {have}"))
            return
        m.settle(event.settles, event.round, owned=event.owned if event.is_included else None)
        m.queue.add(local.ApplyEntry(0, event.round, event.path, event.offset, event.lowrank_r), order=event.order)
        m.expected = RoundIndex(event.round + 1)
        m.num_contributors = event.num_contributors

    def _on_abandoned(self, event: ev.ContributionAbandoned) -> None:
        m = self.state
        if event.is_voted:
            phase_returned.give_up(m, event.phase)
        m.settle(event.phase, m.expected or RoundIndex(0), owned=None)
        if m.flight is not None and m.flight.phase == event.phase and m.flight.stage == "settling":
            m.flight.orders.append(event.order)
        else:
            m.emit(ev.FinishOrder(event.order, None))

    def _on_begun(self, event: ev.TrainingBegun) -> None:
        m = self.state
        m.evaluation_due = m.settings.evaluate_every_rounds > 0
        if event.newest_own_phase is not None:
            # The record can be lost with a disk; the chain remembers which numbers were used.
            m.next_phase = PhaseId(max(m.next_phase, event.newest_own_phase + 1))
        phase = feedback_to_restore(m.record, event.height, event.newest_own_phase)
        if not m.is_begun:
            phase_returned.begin(m, event.own_phases, event.kept_phases)
        if not m.is_begun and phase is not None and phase_returned.is_restorable(m):
            m.queue.add(local.RestoreSite(0, m.settings.feedback_path, phase), order=event.order)
            return
        if not m.is_begun:
            phase_returned.lost(m)
        m.is_begun = True
        m.emit(ev.FinishOrder(event.order, None))

    def _advance(self) -> None:
        m = self.state
        while not m.has_failed and not m.has_left:
            if phase_returned.reconcile(m) or phase_outer.pump(m) or phase_trainer.direct(m):
                continue
            if not m.is_leaving or m.is_trainer_active or not m.queue.is_idle:
                return
            self._leave()

    def _leave(self) -> None:
        """The trainers have stopped and nothing is queued: save what only this site has, then go."""
        m, settled = self.state, self.state.record.last_settled
        is_new = m.flight is not None or settled != m.record.saved_phase or m.held != m.saved_held
        if settled is not None and is_new and m.is_begun and m.has_outer and not m.has_saved:
            m.has_saved = True
            m.queue.add(local.SaveSite(0, m.settings.feedback_path, settled))
            return
        m.has_left = True
        m.emit(ev.FinishLeaving())
