"""Inner training of one rank: gradients of its stages, the optimizer's update, its own progress and checkpoint."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from dilocoxd.ids import PhaseId
from dilocoxd.trainer.channel import CommandChannel
from dilocoxd.trainer.checkpoint import (
    CheckpointWriter,
    Progress,
    copy_moments,
    load_moments,
    moment_pieces,
    newest_complete,
    read_moments,
)
from dilocoxd.trainer.optimizer import (
    InnerOptimizer,
    OptimizerConfig,
    clip_factor,
    gradient_squares,
    scale_gradients,
)
from dilocoxd.trainer.parallel.local import Extent, is_cut_by_tensor, local
from dilocoxd.trainer.parameters.copies import copies_for
from dilocoxd.trainer.pipeline import Pipeline

log = logging.getLogger(__name__)


class InnerTraining:
    """The part of an inner step that is this rank's own; sums over ranks are the caller's."""

    def __init__(self, pipeline: Pipeline, config: OptimizerConfig, *, save_every: int = 1) -> None:
        """`save_every`: boundaries from one checkpoint to the next."""
        self.pipeline = pipeline
        self.progress = Progress()
        place = pipeline.place
        number = (place.stage_rank * place.shard + place.part) * place.tensor + place.slice
        self.checkpoints = CheckpointWriter(number, place.pipeline * place.shard * place.tensor)
        self._config = config
        self._save_every = save_every
        self._named = {name: param for name, param in pipeline.parameters() if param.requires_grad}
        self._params = list(self._named.values())
        self._counted = [param for param in self._params if not place.slice or is_cut_by_tensor(param)]
        """What no other rank of this replica counts, or writes, for us."""
        self._optimizer = InnerOptimizer(self._named, config)
        self._copies = copies_for(map(local, self._params))
        self.rate: float | None = None
        """Learning rate of the newest update."""
        self.computed_s = 0.0
        """What of the newest gradients was work of this rank, and no waiting for other stages."""

    def gradients(self, ids_BT: Tensor, targets_BT: Tensor) -> tuple[float, float]:
        """This rank's shares of (mean loss, sum of squared gradients) of the site's batch."""
        loss = self.pipeline.train_step(ids_BT, targets_BT)
        # Each replica holds all gradients. One wait for the device in a step, here.
        with self.pipeline.clock.computing():
            squares = gradient_squares(self._counted).to(loss.device) / self.pipeline.config.replicate
        share, sum_of_squares = torch.stack((loss.double(), squares)).tolist()
        self.computed_s = self.pipeline.clock.read()
        return share, sum_of_squares

    def update(self, sum_of_squares: float) -> None:
        """One optimizer step with the gradients at hand, clipped by the norm over all ranks."""
        scale_gradients(self._params, clip_factor(sum_of_squares, self._config.clip_norm))
        rate = self._config.learning_rate(self.progress.shared_step, self.progress.optimizer_step)
        self._optimizer.step(rate)
        self.rate = rate
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

    def is_save_due(self, phase: PhaseId) -> bool:
        """Whether the boundary of this phase is one that is saved. Its number says so, and not what this generation
        counted: all ranks save at the same ones, and generations that live for less do not put it off for ever."""
        return (phase + 1) % self._save_every == 0

    def save(self, directory: Path, own_position: int) -> None:
        """Write moments and progress in the background; nothing before the first step, or while the last is written.

        Replicas hold the same, so one of them writes.
        """
        self.progress = replace(self.progress, own_position=own_position)
        if self.progress.optimizer_step == 0 or self.checkpoints.is_busy or self.pipeline.place.copy:
            return
        counted = set(self._counted)
        moments: dict[str, Tensor] = {}
        for optimizer, named in self._optimizer.parts:
            ours = {name: param for name, param in named.items() if param in counted}
            moments |= copy_moments(optimizer, ours, self._copies)
        self.checkpoints.write(directory, self.progress, moments, self.pieces())

    def restore(self, directory: Path, channel: CommandChannel) -> bool:
        """Continue from the newest set that all ranks can read; False if there is none. A collective call."""
        folder = newest_complete(directory)
        found = read_moments(folder, self.pieces()) if folder is not None else None
        step = found[0].global_step if found is not None else -1
        # Ranks look at the same disk one after the other: they must have seen the same set, or none counts.
        num_found, sum_of_steps = channel.sum((float(found is not None), float(step)))
        num_ranks = self.pipeline.config.world_size
        if found is None or num_found != num_ranks or sum_of_steps != step * num_ranks:
            if folder is not None:
                log.warning(
                    "checkpoint %s is not used, for it is damaged or another model's, here or at another rank: moments"
                    " and the place in this site's own text begin anew",
                    folder.name,
                )
            return False
        self.progress, moments = found
        for part in self._optimizer.parts:
            load_moments(*part, moments, self.progress.optimizer_step)
        return True

    def pieces(self) -> dict[str, Extent]:
        """Which rows and columns of which moments lie on this rank."""
        return {key: piece for part in self._optimizer.parts for key, piece in moment_pieces(*part).items()}
