"""Turns what the site reports into losses, spans, totals, alerts and events for people."""

from collections.abc import Callable
from typing import Final, assert_never

from dilocoxd.daemon.others_timeline import OtherSpan
from dilocoxd.daemon.site_interface import (
    AnchorAdopted,
    ContributionDropped,
    ContributionOffered,
    ContributionSettled,
    LoopLagged,
    PhaseClosed,
    PhaseExtended,
    PhaseStarted,
    SiteEvent,
    StepReported,
    ValidationMeasured,
    WorkerChanged,
)
from dilocoxd.daemon.state import Journal
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.events import EventLog

LAG_ALERT_S: Final = 5.0
"""The loop was away for so long: others probe a silent peer after this. Shorter delays are events only."""
IDLE_SHOWN_S: Final = 0.02
"""Shorter waits are not drawn in the timeline."""


class SiteHistory:
    """Writes to the journal and the event log."""

    def __init__(
        self, journal: Journal, events: EventLog, height: Callable[[], int], told_idle: Callable[[float], None]
    ) -> None:
        self._journal = journal
        self._events = events
        self._height = height
        self._told_idle = told_idle
        self._states: dict[str, str] = {}
        self._idle_s = 0.0
        self.tokens_per_step = 0

    def note(self, event: SiteEvent) -> None:
        """Record one event; never blocks."""
        match event:
            case StepReported():
                self._step(event)
            case ValidationMeasured():
                self._journal.add_validation_loss(event.round, event.loss)
                self._events.emit(catalogue.ValidationMeasured(round=event.round, validation_loss=event.loss))
            case PhaseStarted():
                now = self._journal.now()
                self._journal.phases.append(OtherSpan("phase", now, now, event.base_round))
                self._events.emit(
                    catalogue.PhaseStarted(
                        phase=event.phase, base_round=event.base_round, inner_steps=event.inner_steps
                    )
                )
            case WorkerChanged():
                self._worker(event)
            case PhaseClosed() | ContributionDropped() | ContributionSettled() | PhaseExtended():
                self._phase_event(event)
            case LoopLagged(seconds, doing):
                self._lagged(seconds, doing)
            case ContributionOffered() | AnchorAdopted():
                pass
            case _:
                assert_never(event)

    def _phase_event(self, event: PhaseClosed | ContributionDropped | ContributionSettled | PhaseExtended) -> None:
        phase = event.phase
        match event:
            case PhaseClosed(_, steps, tokens, loss):
                told: catalogue.Event = catalogue.PhaseClosed(
                    phase=phase, inner_steps=steps, tokens=tokens, mean_loss=loss
                )
            case ContributionDropped(_, reason):
                told = catalogue.ContributionRefused(phase=phase, reason=reason)
            case ContributionSettled(_, at, is_included):
                told = catalogue.ContributionSettled(phase=phase, round=at, is_included=is_included)
            case PhaseExtended(_, steps, reason):
                told = catalogue.PhaseExtended(phase=phase, inner_steps=steps, reason=reason)
        self._events.emit(told)

    def _lagged(self, seconds: float, doing: str) -> None:
        self._events.emit(catalogue.LoopBlocked(lag_s=round(seconds, 3), doing=doing))
        if seconds >= LAG_ALERT_S:
            what = f"in {doing}" if doing else "nobody saw where: starved of CPU, or frozen as a whole"
            text = f"the daemon stood still for {seconds:.1f} s ({what}); peers may have taken it for lost"
            remedy = "look for what else takes CPU, memory or disk on this machine; report it if a call is named"
            self._events.emit(catalogue.AlertRaised(code="loop_blocked", text=text, remedy=remedy))

    def _step(self, event: StepReported) -> None:
        journal = self._journal
        now = journal.now()
        journal.totals.inner_steps += 1
        journal.totals.tokens += event.tokens
        self.tokens_per_step = event.tokens
        journal.add_inner_loss(event.global_step, event.loss)
        start = now - event.step_seconds
        idle = max(0.0, event.idle_seconds - self._idle_s)
        self._idle_s = event.idle_seconds
        self._told_idle(event.idle_seconds)
        if idle >= IDLE_SHOWN_S:
            journal.add_span("idle", start - idle, start, self._height())
        journal.add_span("compute", start, now, self._height())
        if journal.phases:
            journal.phases[-1].end = now

    def _worker(self, event: WorkerChanged) -> None:
        code = f"worker_{event.role}_lost"
        before, self._states[event.role] = self._states.get(event.role), event.state
        if before == event.state:
            return
        if event.state == "lost":
            self._events.emit(
                catalogue.WorkerDied(
                    worker=event.role, pid=event.pid, reason=event.reason, restarts_left=event.restarts_left
                )
            )
            text = f"the {event.role} was lost ({event.reason}) and is started again"
            remedy = f"look into logs/ of the run directory ({event.role})"
            self._events.emit(catalogue.AlertRaised(code=code, text=text, remedy=remedy))
        elif event.state == "running":
            if code in self._journal.alerts:
                self._events.emit(catalogue.AlertCleared(code=code))
            self._events.emit(catalogue.WorkerStarted(worker=event.role, pid=event.pid, generation=event.generation))
