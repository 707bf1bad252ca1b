"""The life of a site's trainers between StartTraining and StopTraining (docs/internals.md sections 2 and 4).

All ranks run the same loop and see the same commands at the same inner-step boundary. Rank 0 answers the daemon; the
last rank, which knows the loss, reports steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dilocoxd.errors import WorkerError
from dilocoxd.ids import PhaseId, RoundIndex
from dilocoxd.ipc.client import Connection
from dilocoxd.trainer.channel import CommandChannel
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.flat import FlatParameters
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.mixing import MixedParameters
from dilocoxd.wire import local

_NON_FINITE_STEPS_MAX: Final = 50
_LOSS_NOT_FINITE: Final = 1e30
"""Reported instead of NaN or infinity, which the codec refuses."""


@dataclass(slots=True)
class PhaseProgress:
    """The phase that trains now."""

    phase: PhaseId
    inner_steps: int
    """Where its boundary is; Extend moves it."""
    inner_step: int = 0
    tokens: int = 0
    loss_sum: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Mean training loss of the phase so far."""
        return self.loss_sum / self.inner_step if self.inner_step else 0.0


class TrainingLoop:
    """Trains phases, hands in pseudo-gradients and takes anchors as the daemon says."""

    def __init__(
        self,
        link: Connection,
        channel: CommandChannel,
        training: InnerTraining,
        flat: FlatParameters,
        order: BatchOrder,
        validation: list[tuple[Tensor, Tensor]],
    ) -> None:
        """All arguments belong to this rank; ANCHOR and PHASE are attached already."""
        self._link = link
        self._channel = channel
        self._training = training
        self._flat = flat
        self._order = order
        self._validation = validation
        self._anchor = flat.view(link.buffers[local.ANCHOR])
        self._phase_buffer = flat.view(link.buffers[local.PHASE])
        self._phase: PhaseProgress | None = None
        self._round = RoundIndex(0)
        self._checkpoints: Path | None = None
        self._is_boundary_due = False
        self._is_paused = False
        self._needs_anchor = False
        self._is_stopped = False
        self._idle_s = 0.0
        self._num_non_finite = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            local.StartTraining: self._on_start,
            local.Extend: self._on_extend,
            local.CloseBoundary: self._on_close_boundary,
            local.TakeAnchor: self._on_take_anchor,
            local.Evaluate: self._on_evaluate,
            local.Pause: self._on_pause,
            local.Resume: self._on_resume,
            local.StopTraining: self._on_stop_training,
            local.Stop: self._on_stop,
        }

    def run(self) -> None:
        """Until the daemon says stop. Raises WorkerError for commands that make no sense here, DaemonGone at EOF."""
        while not self._is_stopped:
            phase = self._phase
            if phase is None or self._is_paused or self._is_boundary_due or self._needs_anchor:
                commands = self._wait()
            else:
                commands = self._step(phase)
            for command in commands:
                handler = self._handlers.get(type(command))
                if handler is None:
                    raise WorkerError(f"a trainer cannot carry out {type(command).__name__}")
                handler(command)

    def _tell(self, message: Any) -> None:
        """Rank 0 speaks for the site."""
        if self._training.pipeline.has_first:
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
        batch = training.pipeline.config.batch_sequences
        ids_BT, targets_BT = self._order.batch(training.progress.position, batch)
        local_loss, local_squares = training.gradients(ids_BT, targets_BT)
        (loss, squares), commands = self._channel.exchange((local_loss, local_squares))
        self._apply(squares)
        phase.inner_step += 1
        phase.tokens += ids_BT.numel()
        phase.loss_sum += loss if math.isfinite(loss) else 0.0
        if training.pipeline.has_last:
            self._link.send(
                local.StepDone(
                    phase=phase.phase,
                    inner_step=phase.inner_step,
                    global_step=training.progress.global_step,
                    loss=loss if math.isfinite(loss) else _LOSS_NOT_FINITE,
                    tokens=ids_BT.numel(),
                    step_seconds=time.monotonic() - started,
                    idle_seconds=self._idle_s,
                )
            )
        if phase.inner_step >= phase.inner_steps:
            self._is_boundary_due = True
            self._tell(local.BoundaryDue(phase=phase.phase, inner_steps=phase.inner_step))
        return commands

    def _apply(self, sum_of_squares: float) -> None:
        # One batch with an overflow must not destroy the model; the same decision on every rank, the sum is shared.
        if math.isfinite(sum_of_squares):
            self._num_non_finite = 0
            self._training.update(sum_of_squares)
            return
        self._num_non_finite += 1
        if self._num_non_finite > _NON_FINITE_STEPS_MAX:
            raise WorkerError(f"gradients were not finite for {_NON_FINITE_STEPS_MAX} steps in a row: lower inner.lr")
        self._training.skip()

    def _on_start(self, command: local.StartTraining) -> None:
        self._checkpoints = Path(command.checkpoint_directory) if command.checkpoint_directory else None
        self._flat.replace(self._anchor)
        if self._checkpoints is not None:
            self._training.restore(self._checkpoints, self._channel)
        self._hold(command.round, command.shared_steps)
        self._begin(command.phase, command.inner_steps)
        self._channel.barrier()
        self._tell(local.AnchorTaken(round=command.round, how="start", phase=command.phase, inner_step=0))

    def _begin(self, phase: PhaseId, inner_steps: int) -> None:
        self._phase = PhaseProgress(phase, max(1, inner_steps))
        self._is_boundary_due = False

    def _hold(self, round_index: RoundIndex, shared_steps: int) -> None:
        self._round = round_index
        self._training.join_schedule(shared_steps)

    def _on_extend(self, command: local.Extend) -> None:
        phase = self._running("Extend")
        phase.inner_steps = max(phase.inner_steps, phase.inner_step) + command.inner_steps
        self._is_boundary_due = phase.inner_step >= phase.inner_steps

    def _on_close_boundary(self, command: local.CloseBoundary) -> None:
        phase = self._running("CloseBoundary")
        if command.then not in ("replace", "keep", "wait"):
            raise WorkerError(f"CloseBoundary.then is {command.then!r}")
        self._flat.subtract_from(self._phase_buffer)
        self._flat.mark_base()
        if command.then == "replace":
            self._flat.begin(self._anchor, command.num_contributors)
            self._hold(command.round, command.shared_steps)
        self._needs_anchor = command.then == "wait"
        self._channel.barrier()
        self._tell(
            local.BoundaryClosed(
                phase=phase.phase,
                inner_steps=phase.inner_step,
                tokens=phase.tokens,
                mean_loss=phase.mean_loss,
                took_anchor=command.then == "replace",
                round=self._round,
            )
        )
        self._begin(command.next_phase, command.inner_steps)
        self._checkpoint()

    def _on_take_anchor(self, command: local.TakeAnchor) -> None:
        phase = self._running("TakeAnchor")
        if command.how == "replace":
            self._flat.replace(self._anchor)
        elif command.how == "merge":
            self._flat.merge(self._anchor)
        elif command.how == "mix" and isinstance(self._flat, MixedParameters):
            self._flat.mix(self._anchor, command.mixed_round)
        else:
            raise WorkerError(f"TakeAnchor.how is {command.how!r}")
        self._hold(command.round, command.shared_steps)
        self._needs_anchor = False
        self._channel.barrier()
        self._tell(
            local.AnchorTaken(round=command.round, how=command.how, phase=phase.phase, inner_step=phase.inner_step)
        )

    def _on_evaluate(self, command: local.Evaluate) -> None:
        started = time.monotonic()
        own = self._flat.save()
        self._flat.load(self._anchor)
        loss = self._training.pipeline.evaluate(self._validation, self._report_evaluation)
        self._flat.restore(own)
        self._tell(local.Evaluated(round=command.round, validation_loss=loss, seconds=time.monotonic() - started))

    def _report_evaluation(self, num_done: int) -> None:
        self._tell(local.WorkerAlive(doing="evaluate", per_mille=1000 * num_done // len(self._validation)))

    def _on_pause(self, _: local.Pause) -> None:
        self._is_paused = True

    def _on_resume(self, _: local.Resume) -> None:
        self._is_paused = False

    def _on_stop_training(self, _: local.StopTraining) -> None:
        self._training.checkpoints.finish()
        self._checkpoint()
        self._training.checkpoints.finish()
        self._channel.barrier()
        phase = self._phase or PhaseProgress(PhaseId(0), 1)
        self._tell(local.TrainerStopped(phase=phase.phase, inner_step=phase.inner_step))
        self._is_stopped = True

    def _on_stop(self, _: local.Stop) -> None:
        self._training.checkpoints.finish()
        self._is_stopped = True

    def _checkpoint(self) -> None:
        if self._checkpoints is not None:
            self._training.save(self._checkpoints)

    def _running(self, what: str) -> PhaseProgress:
        if self._phase is None:
            raise WorkerError(f"{what} before StartTraining")
        return self._phase
