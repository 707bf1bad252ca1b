"""One consistent look at the site for GET /v1/status."""

from dilocoxd.daemon.outer_worker import OuterWorker
from dilocoxd.daemon.site_interface import SiteStatus, WorkerStatus
from dilocoxd.daemon.site_progress import SiteProgress
from dilocoxd.daemon.trainer import Trainer
from dilocoxd.ids import Digest
from dilocoxd.rounds.phase_returned import work_needed
from dilocoxd.rounds.phases import PhaseMachine


def site_status(machine: PhaseMachine, progress: SiteProgress, outer: OuterWorker, trainer: Trainer) -> SiteStatus:
    """Cheap: nothing is measured here."""
    state = machine.state
    track, shared = state.trainer, state.shared
    flight = state.flight if state.flight is not None and state.flight.stage != "forming" else None
    outer_state = "running" if outer.is_up else "starting"
    return SiteStatus(
        waiting_for=machine.waiting_for,
        is_training=state.is_trainer_active and not state.pause_reason,
        phase=track.phase if state.is_trainer_active else None,
        inner_step=track.inner_step,
        inner_steps=track.inner_steps,
        global_step=progress.global_step,
        base_round=progress.base_round if state.is_trainer_active else None,
        step_seconds=progress.step_seconds,
        idle_seconds=progress.idle_seconds,
        train_seconds=progress.train_seconds,
        tokens=progress.tokens,
        in_flight=flight.phase if flight is not None else None,
        state_round=shared.round if shared is not None else None,
        anchor_sha256=Digest(shared.anchor_sha256) if shared is not None else None,
        state_digest=Digest(shared.state_digest) if shared is not None else None,
        workers={
            "outer": WorkerStatus(
                outer_state, outer.restarts.total, (outer.pid,) if outer.pid else (), outer.generation
            ),
            "trainer": WorkerStatus(trainer.state, trainer.restarts.total, trainer.pids, trainer.number),
        },
        work_needed=work_needed(state),
    )
