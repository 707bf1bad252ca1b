"""The life of a site's trainers between StartTraining and StopTraining (docs/internals.md sections 2 and 4).

All ranks run the same loop and see the same commands at the same inner-step boundary. Rank 0 answers the daemon; the
last rank, which knows the loss, reports steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dilocoxd.errors import WorkerError
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.ipc.client import DaemonConnection
from dilocoxd.trainer.away.moving import shared_vectors
from dilocoxd.trainer.channel import CommandChannel
from dilocoxd.trainer.data.held_out import BatchLosses, compared
from dilocoxd.trainer.data.order import SampleOrder
from dilocoxd.trainer.data.targets import mean_over
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.parallel.memory import held_bytes
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.profiling import StepRecorder
from dilocoxd.wire.local import trainer as local_trainer, worker as local_worker

_NON_FINITE_STEPS_MAX: Final = 50
MEMORY_EVERY_STEPS: Final = 10
"""How often ranks tell what they hold."""


@dataclass(slots=True)
class PhaseProgress:
    """The phase that trains now, here or in a loop of somebody's own."""

    phase: PhaseId
    inner_steps: int
    """Where its boundary is; Extend moves it."""
    inner_step: int = 0
    tokens: int = 0
    loss_sum: float = 0.0
    num_losses: int = 0
    """Steps whose loss was finite; `loss_sum` is theirs."""

    def count(self, loss: float, tokens: int) -> None:
        """An inner step is done."""
        self.inner_step += 1
        self.tokens += tokens
        if math.isfinite(loss):
            self.loss_sum += loss
            self.num_losses += 1

    @property
    def mean_loss(self) -> float:
        """Mean training loss of the phase so far; NOT_FINITE if no step had a finite one."""
        return self.loss_sum / self.num_losses if self.num_losses else local_trainer.NOT_FINITE


class TrainingLoop:
    """Trains phases, hands in pseudo-gradients and takes anchors as the daemon says."""

    def __init__(
        self,
        link: DaemonConnection,
        channel: CommandChannel,
        training: InnerTraining,
        flat: FlatParameters,
        order: SampleOrder,
        validation: dict[str, list[tuple[Tensor, Tensor]]],
    ) -> None:
        """All arguments belong to this rank; ANCHOR and PHASE are attached already. `validation`: by source."""
        self._link = link
        self._channel = channel
        self._training = training
        self._flat = flat
        self._order = order
        self._validation = validation
        self._shared = shared_vectors(link, flat, training.pipeline.meet_slices)
        training.checkpoints.deliver = self._shared.deliver
        self._phase: PhaseProgress | None = None
        self._round = RoundIndex(0)
        self._checkpoints: Path | None = None
        self._is_boundary_due = False
        self._is_paused = False
        self._needs_anchor = False
        self._is_stopped = False
        self._idle_s = 0.0
        self._num_non_finite = 0
        self._num_skipped = 0
        self._recorder = StepRecorder(training.pipeline.place.rank, training.pipeline.device, link.send)
        self._handlers: dict[type, Callable[[Any], None]] = {
            local_trainer.StartTraining: self._on_start,
            local_trainer.Extend: self._on_extend,
            local_trainer.CloseBoundary: self._on_close_boundary,
            local_trainer.TakeAnchor: self._on_take_anchor,
            local_trainer.Evaluate: self._on_evaluate,
            local_trainer.Pause: self._on_pause,
            local_trainer.Resume: self._on_resume,
            local_trainer.StopTraining: self._on_stop_training,
            local_trainer.Profile: self._on_profile,
            local_worker.Stop: self._on_stop,
        }

    def run(self) -> None:
        """Until the daemon says stop. Raises WorkerError for commands that make no sense here, DaemonGone at EOF."""
        while not self._is_stopped:
            phase = self._phase
            if phase is None or self._is_paused or self._is_boundary_due or self._needs_anchor:
                commands = self._wait()
            else:
                with self._recorder.step(self._training.progress.global_step + 1):
                    commands = self._step(phase)
            for command in commands:
                handler = self._handlers.get(type(command))
                if handler is None:
                    raise WorkerError(f"a trainer cannot carry out {type(command).__name__}")
                handler(command)

    def _tell(self, message: Any) -> None:
        """Rank 0 speaks for the site."""
        if self._training.pipeline.speaks:
            self._link.send(message)

    def _wait(self) -> list[Any]:
        started = time.monotonic()
        commands = self._channel.wait()
        if self._phase is not None and not self._is_paused:
            self._idle_s += time.monotonic() - started
        return commands

    def _step(self, phase: PhaseProgress) -> list[Any]:
        started = time.monotonic()
        training = self._training
        config, place = training.pipeline.config, training.pipeline.place
        ids_BT, targets_BT = self._order.batch(training.progress.position, config.batch_sequences)
        read_s = self._at_rank(time.monotonic() - started)
        local_loss, local_squares = training.gradients(ids_BT, targets_BT)
        own_s = _only(training.computed_s, place.stage_rank, config.num_ranks)
        memory = self._memory() if phase.inner_step % MEMORY_EVERY_STEPS == 0 else ()
        sums, commands = self._channel.exchange((local_loss, local_squares, *own_s, *read_s, *memory))
        loss, squares, *by_rank = sums
        computed_s, by_rank = by_rank[: config.num_ranks], by_rank[config.num_ranks :]
        read_s, held = by_rank[: config.world_size], by_rank[config.world_size :]
        bubble = training.pipeline.clock.waited(sum(computed_s) / config.world_size)
        self._apply(squares)
        phase.count(loss, ids_BT.numel())
        if config.num_ranks > 1:
            training.pipeline.pace.note([spent / place.in_stage for spent in computed_s], time.monotonic() - started)
        if training.pipeline.reports:
            self._link.send(
                local_trainer.StepDone(
                    phase=phase.phase,
                    inner_step=phase.inner_step,
                    global_step=training.progress.global_step,
                    loss=loss if math.isfinite(loss) else local_trainer.NOT_FINITE,
                    tokens=ids_BT.numel(),
                    step_seconds=time.monotonic() - started,
                    idle_seconds=self._idle_s,
                    learning_rate=training.rate if training.rate is not None else local_trainer.UNKNOWN,
                    gradient_norm=math.sqrt(squares) if math.isfinite(squares) else local_trainer.UNKNOWN,
                    skipped_steps=self._num_skipped,
                    rank_memory_bytes=tuple(map(int, held[: local_trainer.RANKS_MAX])),
                    data_seconds=max(read_s),
                    bubble=bubble if config.num_ranks > 1 else local_trainer.UNKNOWN,
                    stages=training.pipeline.pace.told,
                )
            )
        if phase.inner_step >= phase.inner_steps:
            self._is_boundary_due = True
            self._tell(local_trainer.BoundaryDue(phase=phase.phase, inner_steps=phase.inner_step))
        return commands

    def _memory(self) -> list[float]:
        """What this rank holds, in its place."""
        return self._at_rank(float(held_bytes(self._training.pipeline.device)))

    def _at_rank(self, value: float) -> list[float]:
        """In its place among all ranks: the sums over ranks are what each of them has."""
        pipeline = self._training.pipeline
        return _only(value, pipeline.place.rank, pipeline.config.world_size)

    def _apply(self, sum_of_squares: float) -> None:
        # One batch with an overflow must not destroy the model; the same decision on every rank, the sum is shared.
        if math.isfinite(sum_of_squares):
            self._num_non_finite = 0
            self._training.update(sum_of_squares)
            return
        self._num_non_finite += 1
        self._num_skipped += 1
        if self._num_non_finite > _NON_FINITE_STEPS_MAX:
            raise WorkerError(
                f"gradients were not finite for {_NON_FINITE_STEPS_MAX} steps in a row: if an alert names a site, its"
                " contributions spoiled the model; else inner.lr is too high, or the GPU computes wrongly"
            )
        self._training.skip()

    def _on_start(self, command: local_trainer.StartTraining) -> None:
        directory = command.checkpoint_directory
        self._checkpoints = self._shared.checkpoints(directory) if directory else None
        self._flat.replace(self._shared.anchor())
        if self._checkpoints is not None:
            self._shared.fetch_moments(self._training.pieces())
            self._training.restore(self._checkpoints, self._channel)
        self._order.own_position = self._training.progress.own_position
        self._hold(command.round, command.shared_steps)
        self._order.begin(command.samples, command.volume)
        self._begin(command.phase, command.inner_steps)
        self._channel.barrier()
        self._tell(local_trainer.AnchorTaken(round=command.round, how="start", phase=command.phase, inner_step=0))

    def _begin(self, phase: PhaseId, inner_steps: int) -> None:
        self._phase = PhaseProgress(phase, max(1, inner_steps))
        self._is_boundary_due = False

    def _hold(self, round_index: RoundIndex, shared_steps: int) -> None:
        self._round = round_index
        self._training.join_schedule(shared_steps)

    def _on_extend(self, command: local_trainer.Extend) -> None:
        phase = self._running("Extend")
        phase.inner_steps = max(phase.inner_steps, phase.inner_step) + command.inner_steps
        self._is_boundary_due = phase.inner_step >= phase.inner_steps

    def _on_close_boundary(self, command: local_trainer.CloseBoundary) -> None:
        phase = self._running("CloseBoundary")
        if command.then not in ("replace", "keep", "wait"):
            raise WorkerError(f"CloseBoundary.then is {command.then!r}")
        with self._shared.phase() as phase_vector:
            self._flat.subtract_from(phase_vector)
        if self._training.pipeline.config.has_copies:
            self._channel.barrier()
            self._flat.note_offered(self._shared.phase_here)
        self._flat.mark_base()
        if command.then == "replace":
            self._flat.begin(self._shared.anchor(), command.num_contributors)
            self._hold(command.round, command.shared_steps)
        self._needs_anchor = command.then == "wait"
        self._channel.barrier()
        self._tell(
            local_trainer.BoundaryClosed(
                phase=phase.phase,
                inner_steps=phase.inner_step,
                tokens=phase.tokens,
                mean_loss=phase.mean_loss,
                took_anchor=command.then == "replace",
                round=self._round,
            )
        )
        self._order.begin(command.samples, command.volume)
        self._begin(command.next_phase, command.inner_steps)
        if self._training.is_save_due(phase.phase):
            self._checkpoint()
        if self._training.pipeline.speaks:
            self._training.pipeline.pace.keep()

    def _on_take_anchor(self, command: local_trainer.TakeAnchor) -> None:
        phase = self._running("TakeAnchor")
        self._flat.take(self._shared.anchor(), command.how, command.mixed_round)
        self._hold(command.round, command.shared_steps)
        self._needs_anchor = False
        if command.how == "replace":
            self._order.begin(command.samples, command.volume)
            self._num_non_finite = 0  # of what is gone: the daemon tries each newer state by a few steps (ADR 31)
        self._channel.barrier()
        self._tell(
            local_trainer.AnchorTaken(
                round=command.round, how=command.how, phase=phase.phase, inner_step=phase.inner_step
            )
        )

    def _on_evaluate(self, command: local_trainer.Evaluate) -> None:
        started = time.monotonic()
        own = self._flat.save()
        self._flat.load(self._shared.anchor())
        measured = self._measured()
        losses = {name: one.mean for name, one in measured.items()}
        left_out = self._left_out(command.round, measured)
        self._flat.restore(own)
        self._tell(
            local_trainer.Evaluated(
                round=command.round,
                validation_loss=mean_over(losses),
                seconds=time.monotonic() - started,
                by_source=tuple(local_trainer.SourceLoss(name, loss) for name, (loss, _) in losses.items() if name),
                left_out=left_out,
            )
        )

    def _measured(self) -> dict[str, BatchLosses]:
        """Losses of the parameters as they are, by source."""
        found: dict[str, BatchLosses] = {}
        num_done = 0
        for name, batches in self._validation.items():
            losses = self._training.pipeline.losses(batches, partial(self._report_evaluation, num_done))
            found[name] = BatchLosses.of(losses, batches)
            num_done += len(batches)
        return found

    def _left_out(self, round_index: RoundIndex, measured: dict[str, BatchLosses]) -> tuple[local_trainer.LeftOut, ...]:
        """What one contribution did to these losses of the anchor, if the outer worker has chosen one."""
        place = self._shared.left_out_at(round_index)
        if not self._all_ranks(place is not None):
            return ()
        self._flat.load(self._shared.anchor(), self._shared.left_out())
        # The outer worker waits for nobody: it may have begun with the next entry while we read.
        is_whole = self._all_ranks(place is not None and place == self._shared.left_out_at(round_index))
        self._shared.forget_left_out()
        if not is_whole:
            return ()
        assert place is not None
        return compared(place, list(measured.values()), list(self._measured().values()))

    def _all_ranks(self, is_so: bool) -> bool:
        return self._channel.sum((float(is_so),))[0] == self._training.pipeline.config.world_size

    def _report_evaluation(self, before: int, num_done: int) -> None:
        total = sum(len(batches) for batches in self._validation.values())
        self._tell(local_worker.WorkerAlive(doing="evaluate", per_mille=1000 * (before + num_done) // total))

    def _on_pause(self, _: local_trainer.Pause) -> None:
        self._is_paused = True
        self._recorder.finish("the site was paused before the first step")

    def _on_profile(self, command: local_trainer.Profile) -> None:
        self._recorder.ask(replace(command, folder=self._shared.profiles(command.folder)))

    def _on_resume(self, _: local_trainer.Resume) -> None:
        self._is_paused = False

    def _on_stop_training(self, _: local_trainer.StopTraining) -> None:
        self._training.checkpoints.finish()
        self._checkpoint()
        self._training.checkpoints.finish()
        self._channel.barrier()
        phase = self._phase or PhaseProgress(PhaseId(0), 1)
        self._tell(local_trainer.TrainerStopped(phase=phase.phase, inner_step=phase.inner_step))
        self._is_stopped = True

    def _on_stop(self, _: local_worker.Stop) -> None:
        self._training.checkpoints.finish()
        self._is_stopped = True

    def _checkpoint(self) -> None:
        if self._checkpoints is not None:
            self._training.save(self._checkpoints, self._order.own_position)

    def _running(self, what: str) -> PhaseProgress:
        if self._phase is None:
            raise WorkerError(f"{what} before StartTraining")
        return self._phase


def _only(value: float, place: int, of: int) -> list[float]:
    """So many numbers, of which this one is not 0."""
    return [0.0] * place + [value] + [0.0] * (of - place - 1)
