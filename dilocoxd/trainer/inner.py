"""Inner training of one rank: gradients of its stages, the optimizer's update, its own progress and checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from dilocoxd.trainer.channel import CommandChannel
from dilocoxd.trainer.checkpoint import (
    CheckpointWriter,
    Progress,
    copy_moments,
    load_moments,
    moment_shapes,
    newest_complete,
    read_moments,
)
from dilocoxd.trainer.optimizer import (
    InnerOptimizer,
    OptimizerConfig,
    clip_factor,
    gradient_sum_of_squares,
    scale_gradients,
)
from dilocoxd.trainer.pipeline import Pipeline


class InnerTraining:
    """The part of an inner step that is this rank's own; sums over ranks are the caller's."""

    def __init__(self, pipeline: Pipeline, config: OptimizerConfig) -> None:
        self.pipeline = pipeline
        self.progress = Progress()
        self.checkpoints = CheckpointWriter(pipeline.rank, pipeline.config.num_ranks)
        self._config = config
        self._named = dict(pipeline.parameters())
        self._params = list(self._named.values())
        self._optimizer = InnerOptimizer(self._named, config)

    def gradients(self, ids_BT: Tensor, targets_BT: Tensor) -> tuple[float, float]:
        """(mean loss on the last rank, else 0; local sum of squared gradients) of one batch."""
        loss = self.pipeline.train_step(ids_BT, targets_BT)
        return loss, gradient_sum_of_squares(self._params)

    def update(self, sum_of_squares: float) -> None:
        """One optimizer step with the gradients at hand, clipped by the norm over all ranks."""
        scale_gradients(self._params, clip_factor(sum_of_squares, self._config.clip_norm))
        rate = self._config.learning_rate(self.progress.shared_step, self.progress.optimizer_step)
        self._optimizer.step(rate)
        self.progress = replace(self.progress, optimizer_step=self.progress.optimizer_step + 1)
        self.skip()

    def skip(self) -> None:
        """Drop the gradients and count the step."""
        self._optimizer.zero_grad()
        self.progress = replace(
            self.progress,
            global_step=self.progress.global_step + 1,
            shared_step=self.progress.shared_step + 1,
            position=self.progress.position + self.pipeline.config.batch_sequences,
        )

    def join_schedule(self, shared_steps: int) -> None:
        """The run is here: a site that was away takes the run's place on the cosine, never an earlier one."""
        shared = max(self.progress.shared_step, shared_steps)
        self.progress = replace(self.progress, shared_step=shared)

    def save(self, directory: Path) -> None:
        """Write moments and progress in the background; nothing before the first step."""
        if self.progress.optimizer_step == 0:
            return
        moments = {key: value for part in self._optimizer.parts for key, value in copy_moments(*part).items()}
        self.checkpoints.write(directory, self.progress, moments)

    def restore(self, directory: Path, channel: CommandChannel) -> bool:
        """Continue from the newest set that all ranks can read; False if there is none. A collective call."""
        folder = newest_complete(directory)
        shapes = {key: shape for part in self._optimizer.parts for key, shape in moment_shapes(*part).items()}
        found = read_moments(folder, shapes) if folder is not None else None
        step = found[0].global_step if found is not None else -1
        # Ranks look at the same disk one after the other: they must have seen the same set, or none counts.
        num_found, sum_of_steps = channel.sum((float(found is not None), float(step)))
        num_ranks = self.pipeline.config.num_ranks
        if found is None or num_found != num_ranks or sum_of_steps != step * num_ranks:
            return False
        self.progress, moments = found
        for part in self._optimizer.parts:
            load_moments(*part, moments, self.progress.optimizer_step)
        return True
