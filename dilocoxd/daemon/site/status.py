"""One consistent look at the site for GET /v1/status."""

from dilocoxd.answers.nodes import Nodes
from dilocoxd.daemon.site.interface import SiteStatus, WorkerChanged, WorkerRole, WorkerState, WorkerStatus
from dilocoxd.daemon.site.progress import SiteProgress
from dilocoxd.daemon.workers.fork_server import ForkServer
from dilocoxd.daemon.workers.outer_pool import OuterPool
from dilocoxd.daemon.workers.outer_worker import OuterWorker
from dilocoxd.daemon.workers.trainers import Trainer
from dilocoxd.ids import Digest
from dilocoxd.machines.phase.machine import PhaseMachine
from dilocoxd.machines.phase.repayment import work_needed


def site_status(
    machine: PhaseMachine,
    progress: SiteProgress,
    fork_server: ForkServer,
    outer: OuterWorker | OuterPool,
    trainer: Trainer,
    nodes: Nodes | None,
) -> SiteStatus:
    """Cheap: nothing is measured here."""
    state = machine.state
    phase, shared = state.trainer.phase, state.shared
    flight = state.flight if state.flight is not None and state.flight.stage != "forming" else None
    return SiteStatus(
        waiting_for=machine.waiting_for,
        is_training=state.is_trainer_active and not state.is_halted,
        phase=phase.number if phase is not None else None,
        inner_step=phase.inner_step if phase is not None else 0,
        inner_steps=phase.inner_steps if phase is not None else 0,
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
            "fork_server": _status(
                fork_server, (fork_server.pid,) if fork_server.pid else (), is_up=fork_server.is_warm
            ),
            "outer": _status(outer, outer.pids, is_up=outer.is_up),
            "trainer": WorkerStatus(trainer.state, trainer.restarts.total, trainer.pids, trainer.generation),
        },
        work_needed=work_needed(state),
        in_flight_content=flight.content if flight is not None else {},
        tokens_per_step=progress.tokens_per_step,
        shared_steps=shared.shared_steps if shared is not None else None,
        learning_rate=progress.learning_rate,
        gradient_norm=progress.gradient_norm,
        data_seconds=progress.data_seconds,
        bubble=progress.bubble,
        stages=progress.stages,
        doing=progress.doing,
        skipped_steps=progress.skipped_steps,
        rank_memory_bytes=progress.rank_memory_bytes,
        profile=progress.profiling.shown,
        spoiled_by=state.soundness.spoiled_by,
        nodes=nodes,
    )


def _status(worker: ForkServer | OuterWorker | OuterPool, pids: tuple[int, ...], *, is_up: bool) -> WorkerStatus:
    parts = tuple(part.pid for part in worker.parts) if isinstance(worker, OuterPool) else ()
    return WorkerStatus("running" if is_up else "starting", worker.restarts.total, pids, worker.generation, parts)


def worker_changed(
    role: WorkerRole, worker: ForkServer | OuterWorker | OuterPool | Trainer, state: WorkerState, reason: str
) -> WorkerChanged:
    """What the rest of the daemon is told of a worker that was started, lost or stopped."""
    budget = worker.restarts
    return WorkerChanged(role, state, budget.total, reason, worker.pid, worker.generation, budget.left)
