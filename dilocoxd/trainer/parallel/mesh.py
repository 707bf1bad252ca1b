"""Where a rank stands in its site, and how a stage is cut among the ranks that share it.

Ranks are numbered pipeline > replicate > shard > tensor, the last fastest: those of one stage are neighbours. Cutting
is torch's: first single matrices (tensor.py, vocabulary.py), then what is left of each block by fully_shard, so that
one block at a time is whole. Source: arXiv 2304.11277 (FSDP), design in docs/cluster.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from dilocoxd.models import StageModule
from dilocoxd.trainer.parallel.local import TENSOR


@dataclass(frozen=True, slots=True)
class MeshPlace:
    """One rank of `pipeline` x `replicate` x `shard` x `tensor`."""

    rank: int
    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def readers(self) -> int:
        """Parts of the batch; each is computed by `tensor` ranks of a stage together."""
        return self.replicate * self.shard

    @property
    def in_stage(self) -> int:
        """Ranks of one stage."""
        return self.readers * self.tensor

    @property
    def stage_rank(self) -> int:
        """Place along the pipeline."""
        return self.rank // self.in_stage

    @property
    def reader(self) -> int:
        """Which part of the batch is this rank's: sequences reader, reader + readers, ..."""
        return self.rank % self.in_stage // self.tensor

    @property
    def slice(self) -> int:
        """Which part of single matrices lies here. The first speaks for all that compute on the same sequences."""
        return self.rank % self.tensor

    @property
    def copy(self) -> int:
        """Which of the replicas this rank belongs to; the first speaks for all, for they hold the same bits."""
        return self.reader // self.shard

    @property
    def part(self) -> int:
        """Which part of the parameters of its stage lies here."""
        return self.reader % self.shard

    def at_stage(self, stage_rank: int) -> int:
        """The rank that computes the same part of the batch at another place of the pipeline.

        >>> MeshPlace(3, pipeline=2, shard=2).at_stage(0)
        1
        """
        return stage_rank * self.in_stage + self.rank % self.in_stage


ALONE: Final = MeshPlace(0)
"""Of a site that cuts nothing."""


class SiteMesh:
    """Process groups of a site whose stages are shared by several ranks. A collective call of all ranks."""

    def __init__(self, place: MeshPlace, device: torch.device, *, is_sequence_cut: bool = False) -> None:
        """Needs the default process group. `is_sequence_cut`: ranks along `tensor` divide positions, too."""
        # Only here: a site without shards or replicas never loads DTensor, half of torch's import time again.
        from torch.distributed.device_mesh import init_device_mesh

        names = ("pipeline", "replicate", "shard", TENSOR)
        mesh: Any = init_device_mesh(
            device.type, (place.pipeline, place.replicate, place.shard, place.tensor), mesh_dim_names=names
        )  # fmt: skip
        self.pipeline_group: Any = mesh["pipeline"].get_group()
        self._device = device
        self._of_matrices: Any = mesh[TENSOR] if place.tensor > 1 else None
        self._is_sequence_cut = is_sequence_cut
        self._used_in_parts: list[nn.Parameter] = []
        self._of_stage: Any = None
        if place.readers > 1:
            self._of_stage = mesh["replicate", "shard"] if place.replicate > 1 else mesh["shard"]
        # With a pipeline a stage runs its microbatches one after the other: gathered once for all of them.
        self._reshard_after_forward = None if place.pipeline == 1 else False

    def cut(self, stage: StageModule, of_blocks: Any | None = None) -> None:
        """Leave only this rank's part of the parameters; buffers and what is left move to the mesh's device.

        `of_blocks`: torch's MixedPrecisionPolicy for what is inside the blocks; None: all is float32.
        Raises ConfigError if tensor parallel layers cannot be made of the stage's blocks.
        """
        if self._of_matrices is not None:
            self._cut_among_slices(stage)
        if self._of_stage is None:
            stage.to(self._device)
        else:
            self._cut_among_shards(stage, of_blocks)
        if self._of_matrices is not None:
            from dilocoxd.trainer.parallel.tensor import used_in_parts

            # Only now: what cuts them makes other parameters of them.
            for block in stage.blocks():
                self._used_in_parts += used_in_parts(block, are_positions_cut=self._is_sequence_cut)

    def _cut_among_slices(self, stage: StageModule) -> None:
        from dilocoxd.trainer.parallel.tensor import cut_matrices, cut_positions
        from dilocoxd.trainer.parallel.vocabulary import cut_vocabulary

        blocks = list(stage.blocks())
        for block in blocks:
            cut_matrices(block, self._of_matrices, are_positions_cut=self._is_sequence_cut)
        if self._is_sequence_cut:
            cut_positions(blocks, self._of_matrices)
        cut_vocabulary(stage, self._of_matrices)

    def _cut_among_shards(self, stage: StageModule, of_blocks: Any | None) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        plain = MixedPrecisionPolicy()
        for module in (*stage.blocks(), stage):
            policy = plain if module is stage or of_blocks is None else of_blocks
            fully_shard(
                module, mesh=self._of_stage, reshard_after_forward=self._reshard_after_forward, mp_policy=policy
            )

    def meet_slices(self) -> None:
        """Wait for the ranks that hold the other parts of our matrices."""
        if self._of_matrices is not None:
            dist.barrier(self._of_matrices.get_group())

    def sum_gradients_of_parts(self) -> None:
        """What tensor parallel layers leave in parts of gradients becomes whole. A collective call of their ranks."""
        if self._of_matrices is not None:
            from dilocoxd.trainer.parallel.tensor import sum_gradients

            sum_gradients(self._used_in_parts, self._of_matrices.get_group())


def gather_gradients_at(stage: StageModule, *, is_last: bool) -> None:
    """Of a cut stage: sum gradients over its ranks in the coming backward pass, or only add them up here."""
    sharded: Any = stage
    sharded.set_requires_gradient_sync(is_last)


def put_back(stages: Iterable[StageModule]) -> None:
    """After forward passes without a backward pass blocks are still whole; their parts become parameters again."""
    for stage in stages:
        for module in stage.modules():
            reshard: Any = getattr(module, "reshard", None)
            if reshard is not None:
                reshard()


def checkpoint_blocks(stage: StageModule) -> None:
    """Keep only the inputs of blocks; the backward pass computes what is inside again, with the same bits."""
    from torch.utils.checkpoint import checkpoint

    for block in stage.blocks():
        inside: Any = block
        inside.forward = partial(checkpoint, inside.forward, use_reentrant=False)
