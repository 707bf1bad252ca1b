"""Turns what the site reports into losses, spans, totals, alerts and events for people."""

from collections.abc import Callable
from typing import Final, assert_never

from dilocoxd.answers.history import SiteSpan
from dilocoxd.daemon.observe.alert_rules import blamed
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.site.interface import (
    AnchorAdopted,
    ContributionLeftOut,
    LoopLagged,
    LossesTold,
    SiteEvent,
    StepReported,
    WorkerChanged,
)
from dilocoxd.daemon.workers.kills import KillReader
from dilocoxd.machines.phase.outputs import OfferContribution, TellSpoiled, TellTrains
from dilocoxd.machines.phase.soundness import Spoiled
from dilocoxd.telemetry import catalogue
from dilocoxd.telemetry.alerts import raised
from dilocoxd.telemetry.cluster import FeedbackMissing
from dilocoxd.telemetry.events import EventLog
from dilocoxd.telemetry.held_out_watch import HeldOutWatch
from dilocoxd.telemetry.loss_watch import LossWatch
from dilocoxd.telemetry.suspicions import (
    ContributionHarmful,
    ContributionMeasured,
    StateSpoiled,
    StateTrained,
    name_newest,
    newest_first,
)
from dilocoxd.wire.local.trainer import LeftOut

LAG_ALERT_S: Final = 5.0
"""The loop was away for so long: others probe a silent peer after this. Shorter delays are events only."""
IDLE_SHOWN_S: Final = 0.02
"""Shorter waits are not drawn in the timeline."""


class SiteHistory:
    """Writes to the journal and the event log."""

    def __init__(
        self,
        journal: Journal,
        events: EventLog,
        height: Callable[[], int],
        told_idle: Callable[[float], None],
        kills: KillReader,
    ) -> None:
        self._kills = kills
        self._journal = journal
        self._events = events
        self._height = height
        self._told_idle = told_idle
        self._states: dict[str, str] = {}
        self._idle_s = 0.0
        self._loss_watch = LossWatch()
        self._held_out = HeldOutWatch()
        self._harmful: dict[str, str] = {}
        """Sentences by site, the newest last."""
        self.tokens_per_step = 0

    def note(self, event: SiteEvent) -> None:
        """Record one event; never blocks."""
        match event:
            case StepReported():
                self._step(event)
            case catalogue.ValidationMeasured():
                self._journal.add_validation_loss(event.round, event.validation_loss, event.by_source)
                self._events.emit(event)
            case catalogue.PhaseStarted():
                now = self._journal.now()
                self._journal.phases.append(SiteSpan("phase", now, now, event.base_round))
                self._events.emit(event)
            case (
                catalogue.PhaseClosed()
                | catalogue.PhaseExtended()
                | catalogue.ContributionRefused()
                | catalogue.ContributionSettled()
                | catalogue.ProfileWritten()
                | catalogue.ProfileFailed()
                | FeedbackMissing()
            ):
                self._keep_loss(event)
                self._events.emit(event)
            case ContributionLeftOut() | LossesTold():
                self._evaluated(event)
            case WorkerChanged():
                self._worker(event)
            case LoopLagged(seconds, doing):
                self._lagged(seconds, doing)
            case TellSpoiled() | TellTrains():
                self._judged(event)
            case OfferContribution() | AnchorAdopted():
                pass
            case _:
                assert_never(event)

    def _keep_loss(self, event: catalogue.Event) -> None:
        if isinstance(event, catalogue.PhaseClosed) and event.mean_loss is not None:
            self._journal.own_phases.keep(event.phase, event.mean_loss)

    def _lagged(self, seconds: float, doing: str) -> None:
        self._events.emit(catalogue.LoopBlocked(lag_s=round(seconds, 3), doing=doing))
        if seconds >= LAG_ALERT_S:
            what = f"in {doing}" if doing else "nobody saw where: starved of CPU, or frozen as a whole"
            text = f"the daemon stood still for {seconds:.1f} s ({what}); peers may have taken it for lost"
            self._events.emit(raised("loop_blocked", text))

    def _step(self, event: StepReported) -> None:
        journal = self._journal
        now = journal.now()
        journal.totals.inner_steps += 1
        journal.totals.tokens += event.tokens
        self.tokens_per_step = event.tokens
        journal.add_inner_loss(event.global_step, event.loss)
        self._watch_loss(event)
        start = now - event.step_seconds
        idle = max(0.0, event.idle_seconds - self._idle_s)
        self._idle_s = event.idle_seconds
        self._told_idle(event.idle_seconds)
        if idle >= IDLE_SHOWN_S:
            journal.add_span("idle", start - idle, start, self._height())
        journal.add_span("compute", start, now, self._height())
        if journal.phases:
            journal.phases[-1].end = now

    def _watch_loss(self, event: StepReported) -> None:
        base = f" on round {self._journal.phases[-1].round}" if self._journal.phases else ""
        if not self._loss_watch.note(event.loss, f"inner step {event.inner_step} of phase {event.phase}{base}"):
            return
        code, text = "loss_spike", self._loss_watch.text
        if text:
            text += blamed(self._journal.alerts.values())
            self._events.emit(raised(code, text))
        else:
            self._events.emit(catalogue.AlertCleared(code=code))

    def _evaluated(self, event: ContributionLeftOut | LossesTold) -> None:
        if isinstance(event, LossesTold):
            self._journal.losses_told = event.number
        else:
            self._measured(event.round, event.measured)

    def _measured(self, round_index: int, measured: LeftOut) -> None:
        """State `round_index` is that after the entry of the round before."""
        contributors = self._journal.row(round_index - 1).contributors
        if measured.place >= len(contributors):
            return  # the entry was taken back meanwhile
        peer, entry = contributors[measured.place].peer, round_index - 1
        self._events.emit(
            ContributionMeasured(peer=peer, round=entry, added=measured.added, deviation=measured.deviation)
        )
        if not self._held_out.note(peer, measured.added, measured.deviation):
            return
        self._events.emit(ContributionHarmful(peer=peer, round=entry, added=measured.added))
        name_newest(self._harmful, peer, f"{peer}: added {measured.added:.2g} to the validation loss in entry {entry}")
        self._events.emit(raised("harmful_contribution", newest_first(self._harmful)))

    def _judged(self, event: TellSpoiled | TellTrains) -> None:
        if isinstance(event, TellSpoiled):
            self._spoiled(event.spoiled)
        else:
            self._events.emit(StateTrained(round=event.round))

    def _spoiled(self, spoiled: Spoiled) -> None:
        """The operator must not look for the cause in the learning rate."""
        self._events.emit(StateSpoiled(round=spoiled.round, since_round=spoiled.since))
        back = spoiled.round - 1 if spoiled.since is None else spoiled.since
        text = (
            f"{spoiled.entries} made the loss not finite: the first inner steps from state {spoiled.round} have none;"
            " `dilocoxd status` says at how many other sites it is so; the state before is"
            f" RUN_DIR@{back}{blamed(self._journal.alerts.values())}"
        )
        self._events.emit(raised("state_spoiled", text))

    def _worker(self, event: WorkerChanged) -> None:
        code = f"worker_{event.role}_lost"
        before, self._states[event.role] = self._states.get(event.role), event.state
        if before == event.state:
            return
        if event.state == "lost":
            reason, left = self._kills.told(event.reason), event.restarts_left
            self._events.emit(catalogue.WorkerDied(worker=event.role, pid=event.pid, reason=reason, restarts_left=left))
            text = f"the {event.role} was lost ({reason}) and is started again"
            self._events.emit(raised(code, text))
        elif event.state == "running":
            if code in self._journal.alerts:
                self._events.emit(catalogue.AlertCleared(code=code))
            self._events.emit(catalogue.WorkerStarted(worker=event.role, pid=event.pid, generation=event.generation))
