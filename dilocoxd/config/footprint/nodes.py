"""Decides how much memory the further machines of a site need at least, for what runs on them. Pure.

Only what is written in any case is counted: values of buffers, parameters, gradients, moments. Less cannot work; with
processes and activations it is more (estimate.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dilocoxd.config.footprint.counts import counted
from dilocoxd.config.footprint.estimate import FLOAT_BYTES, PROCESS_BYTES, estimate, held_bytes
from dilocoxd.config.footprint.shape import shape_of
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """Of a site, in bytes; by default nothing runs on nodes."""

    num_parts: int = 0
    """Outer parts on nodes."""
    part_bytes: int = 0
    """Main memory of each."""
    stage_bytes: tuple[int, ...] = ()
    """Main memory of each stage on nodes."""
    gpu_bytes: int = 0
    """Of the GPU of each trainer, in the fullest of these stages; 0: they have none."""
    stage_gpus: int = 0
    """Trainers of each stage, with a GPU each; 0: they have none."""

    def main_bytes(self, num_parts: int, num_stages: int) -> int:
        """Main memory of a node with so many places, whatever the head gives it."""
        stages = sorted(self.stage_bytes, reverse=True)[:num_stages]
        return min(num_parts, self.num_parts) * self.part_bytes + sum(stages)


NO_NEEDS: Final = NodeNeeds()


def node_needs(manifest: Manifest, site: SiteConfig) -> NodeNeeds:
    """What nodes of `site` need, counted by formula."""
    shape, cluster = shape_of(manifest, site), site.cluster
    counts = counted(manifest, shape)
    in_all = estimate(manifest, shape, counts).outer_worker_bytes - shape.outer_parts * PROCESS_BYTES
    away = counts.slices[len(counts.slices) - cluster.stages :] if cluster.stages else ()
    held = [held_bytes(manifest, one, shape) for one in away]
    # Anchor and phase of a stage lie beside its trainers, as at the head.
    buffers = [2 * FLOAT_BYTES * one.trained for one in away]
    of_trainers = [0 if shape.on_gpu else shape.in_stage * each for each in held]
    return NodeNeeds(
        num_parts=cluster.outer_parts,
        part_bytes=in_all // (shape.outer_parts + cluster.outer_parts),
        stage_bytes=tuple(map(sum, zip(buffers, of_trainers, strict=True))),
        gpu_bytes=max(held, default=0) if shape.on_gpu else 0,
        stage_gpus=shape.in_stage if shape.on_gpu and away else 0,
    )
