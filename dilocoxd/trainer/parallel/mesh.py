"""Where a rank stands in its site, and how a stage is cut among the ranks that share it.

Ranks are numbered pipeline > replicate > shard, the last fastest: those of one stage are neighbours. Cutting is torch's
fully_shard, block by block, so that one block at a time is whole. Source: arXiv 2304.11277 (FSDP), design in
docs/cluster.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dilocoxd.models import StageModule


@dataclass(frozen=True, slots=True)
class MeshPlace:
    """One rank of `pipeline` x `replicate` x `shard`."""

    rank: int
    pipeline: int = 1
    replicate: int = 1
    shard: int = 1

    @property
    def readers(self) -> int:
        """Ranks of one stage; each computes a part of the batch."""
        return self.replicate * self.shard

    @property
    def stage_rank(self) -> int:
        """Place along the pipeline."""
        return self.rank // self.readers

    @property
    def reader(self) -> int:
        """Which part of the batch is this rank's: sequences reader, reader + readers, ..."""
        return self.rank % self.readers

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
        return stage_rank * self.readers + self.reader


class SiteMesh:
    """Process groups of a site whose stages are shared by several ranks. A collective call of all ranks."""

    def __init__(self, place: MeshPlace, device: torch.device) -> None:
        """Needs the default process group."""
        # Only here: a site without shards or replicas never loads DTensor, half of torch's import time again.
        from torch.distributed.device_mesh import init_device_mesh

        names = ("pipeline", "replicate", "shard")
        mesh: Any = init_device_mesh(
            device.type, (place.pipeline, place.replicate, place.shard), mesh_dim_names=names
        )  # fmt: skip
        self.pipeline_group: Any = mesh["pipeline"].get_group()
        self._of_stage: Any = mesh["replicate", "shard"] if place.replicate > 1 else mesh["shard"]
        # With a pipeline a stage runs its microbatches one after the other: gathered once for all of them.
        self._reshard_after_forward = None if place.pipeline == 1 else False

    def cut(self, stage: StageModule) -> None:
        """Leave only this rank's part of the parameters; buffers and what is left move to the mesh's device."""
        from torch.distributed.fsdp import fully_shard

        for module in (*stage.blocks(), stage):
            fully_shard(module, mesh=self._of_stage, reshard_after_forward=self._reshard_after_forward)


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
