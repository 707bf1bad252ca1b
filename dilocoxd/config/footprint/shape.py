"""How a site cuts the model, as far as that decides what the site weighs."""

from __future__ import annotations

from dataclasses import dataclass

from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig


@dataclass(frozen=True, slots=True)
class SiteShape:
    """How a site cuts the model, and among how many sites it is one."""

    stages: int
    """Processes of the pipeline."""
    microbatches: int
    """Pieces of a batch; 0 is the run's number."""
    num_sites: int
    slices_per_process: int = 1
    shard: int = 1
    """Processes that hold each stage in parts."""
    replicate: int = 1
    """Copies of all that."""
    tensor: int = 1
    """Processes that compute each layer together."""
    batch_sequences: int = 0
    """Sequences of an inner step at this site; 0 is the run's number."""
    is_checkpointed: bool = False
    """Whether blocks are computed again in the backward pass."""
    loss_chunk_tokens: int = 0
    """Positions that have logits at a time; 0: all of a microbatch."""
    on_gpu: bool = False
    """Whether the trainers' tensors are in the memory of GPUs."""
    schedule: str = "1f1b"
    """Of the pipeline."""
    outer_parts: int = 1
    """Processes of the outer worker; together they hold what one would."""
    stages_away: int = 0
    """Stages whose trainers run on nodes, the last ones."""
    leaves_out: bool = True
    """Whether some entries are also evaluated without one site's contribution (ADR 39)."""
    dtype: str = ""
    """Arithmetic of forward and backward passes; empty: the run's."""
    is_narrow: bool = False
    """Whether blocks are gathered in 16 bits."""
    layers: tuple[int, ...] = ()
    """Of each slice; empty: equal arithmetic."""
    is_sequence_cut: bool = False
    """Whether the processes of `tensor` divide positions, too."""

    @property
    def readers(self) -> int:
        """Parts of the batch, each of `tensor` processes of a stage."""
        return self.shard * self.replicate

    @property
    def in_stage(self) -> int:
        """Processes of one stage."""
        return self.readers * self.tensor

    @property
    def ranks(self) -> int:
        """Trainer processes."""
        return self.stages * self.in_stage

    @property
    def stages_here(self) -> int:
        """Stages that train on the machine of the daemon."""
        return max(1, self.stages - self.stages_away)


def shape_of(manifest: Manifest, site: SiteConfig | None, num_sites: int = 2) -> SiteShape:
    """Of this site, one of `num_sites`; None: of a site whose site.toml says nothing."""
    site = site or SiteConfig()
    parallel = site.parallel
    return SiteShape(
        parallel.pipeline,
        parallel.pieces(manifest.inner.microbatches),
        num_sites,
        parallel.stages_per_process,
        parallel.shard,
        parallel.replicate,
        parallel.tensor,
        parallel.batch_sequences,
        parallel.activation_checkpointing == "block",
        parallel.loss_chunk_tokens,
        parallel.device == "cuda",
        parallel.schedule,
        site.workers.outer_parts,
        site.cluster.stages,
        site.workers.without_one_every > 0,
        parallel.dtype,
        parallel.traffic == "bfloat16",
        parallel.layers_per_stage,
        parallel.sequence,
    )
