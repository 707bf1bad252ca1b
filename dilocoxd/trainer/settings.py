"""What the trainers of one site take from run.toml, site.toml and the environment, in their own words."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.sections.schedules import SliceOrder
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.ipc.client import PEER_VARIABLE, RUN_DIRECTORY_VARIABLE
from dilocoxd.models import ModelConfig
from dilocoxd.models.frozen import FrozenModel, frozen_of
from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name
from dilocoxd.store.prepared import chosen_cache_dir
from dilocoxd.store.rundir import RunDir
from dilocoxd.trainer.data import DataConfig, TokenizerConfig
from dilocoxd.trainer.data.sources import TextSource, sources_of
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.parallel.measured_cut import CutFile
from dilocoxd.trainer.pipeline import PipelineConfig


@dataclass(frozen=True, slots=True)
class StageSettings:
    """Everything a trainer rank needs to know before it meets the daemon's commands."""

    model: ModelConfig
    pipeline: PipelineConfig
    optimizer: OptimizerConfig
    data: DataConfig
    tokenizer: TokenizerConfig
    sources: tuple[TextSource, ...]
    """Token stores; with any, there is no corpus."""
    frozen: FrozenModel | None
    """Files of the model under the run's adapter."""
    cache_dir: Path
    has_document_mask: bool
    leased_share: tuple[int, int]
    """(a, b): of b samples of the token stores a are leased, the others are from private ones."""
    data_seed: int
    data_stream: str
    """Names this site's order of the data; no two sites share one."""
    validation_sequences: int
    is_evaluated: bool
    """Whether the run ever asks for a validation loss; without, its text need not hold anything out."""
    validation_batch: int
    """Sequences that are evaluated together, the run's batch: every site evaluates the same ones."""
    eager_optimizer: OuterOptimizer | None
    """Moves the site's overlay (trainer/parameters/overlay.py); None unless strategy.delay = eager."""
    fragments: int
    """Parts that strategy.delay = streaming exchanges in turn; 0 with any other delay."""
    mix_alpha: float
    segment_elements_max: int
    backend: str
    device: str
    num_threads: int
    save_every: int
    """Boundaries from one checkpoint to the next."""
    cut_file: CutFile | None = None
    """Where the cut of the layers comes from that an earlier generation measured; None: site.toml alone says."""


def load_settings(environment: Mapping[str, str]) -> StageSettings:
    """Settings of the run directory that the environment names. Raises ConfigError."""
    if RUN_DIRECTORY_VARIABLE not in environment:
        raise ConfigError(
            f"{RUN_DIRECTORY_VARIABLE} is not set: the trainer is started by dilocoxd, not by hand; use `dilocoxd run`"
        )
    run_dir = Path(environment[RUN_DIRECTORY_VARIABLE])
    manifest = load_manifest(run_dir / "run.toml")
    site = load_site(run_dir / "site.toml")
    stream = environment.get(PEER_VARIABLE) or _stream_of_identity(run_dir / site.paths.identity)
    settings = replace(
        make_settings(manifest, site, data_stream=stream),
        frozen=frozen_of(manifest, site.paths.base, run_dir),
        cut_file=_cut_file(site, run_dir),
    )
    local = environment.get("LOCAL_WORLD_SIZE")
    if local and not site.parallel.threads_per_rank:
        settings = replace(settings, num_threads=threads_that_fit(int(local)))  # of this machine, which may be a node
    tokenizer = run_dir / "tokenizer"
    if tokenizer.is_dir():
        settings = replace(settings, tokenizer=replace(settings.tokenizer, path=str(tokenizer)))
    return settings


def make_settings(manifest: Manifest, site: SiteConfig, *, data_stream: str) -> StageSettings:
    """Settings for ``manifest`` at the site ``site``. Raises ConfigError for a contradiction between the two."""
    inner = manifest.inner
    return StageSettings(
        model=ModelConfig.of_run(manifest),
        pipeline=PipelineConfig(
            num_ranks=site.parallel.pipeline,
            replicate=site.parallel.replicate,
            shard=site.parallel.shard,
            tensor=site.parallel.tensor,
            is_checkpointed=site.parallel.activation_checkpointing == "block",
            loss_chunk_tokens=site.parallel.loss_chunk_tokens,
            schedule=site.parallel.schedule,
            stages_per_rank=site.parallel.stages_per_process,
            batch_sequences=site.parallel.sequences(inner.batch_sequences),
            num_microbatches=site.parallel.pieces(inner.microbatches),
            is_bfloat16=site.parallel.dtype_of(inner.dtype) == "bfloat16",
            is_narrow=site.parallel.traffic == "bfloat16",
            is_compiled=site.parallel.compile,
            layers=site.parallel.layers_per_stage,
            is_sequence_cut=site.parallel.sequence,
        ),
        optimizer=OptimizerConfig(
            lr=inner.lr,
            min_lr_ratio=inner.min_lr_ratio,
            warmup_steps=inner.warmup_steps,
            total_steps=inner.total_steps,
            beta1=inner.beta1,
            beta2=inner.beta2,
            eps=inner.eps,
            weight_decay=inner.weight_decay,
            clip_norm=inner.clip_norm,
            kind=inner.optimizer,
            muon_momentum=inner.muon_momentum,
        ),
        data=DataConfig.from_manifest(manifest, site.paths.corpora),
        tokenizer=TokenizerConfig.from_manifest(manifest),
        sources=sources_of(manifest, site),
        frozen=None,
        cache_dir=chosen_cache_dir(site.paths.cache),
        has_document_mask=manifest.data.document_mask,
        leased_share=manifest.data.leased_share,
        data_seed=manifest.seeds.data,
        data_stream=data_stream,
        validation_sequences=manifest.data.validation_sequences,
        is_evaluated=manifest.data.evaluate_every_rounds > 0,
        validation_batch=inner.batch_sequences,
        eager_optimizer=eager_optimizer(manifest),
        fragments=manifest.strategy.fragments,
        mix_alpha=manifest.strategy.mix_alpha,
        segment_elements_max=manifest.strategy.segment_elements_max,
        backend=site.parallel.backend,
        device=site.parallel.device,
        num_threads=site.parallel.threads_per_rank or threads_that_fit(site.ranks_here),
        save_every=site.workers.save_every,
    )


def threads_that_fit(num_ranks: int) -> int:
    """CPU threads for each of so many processes on the cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) // num_ranks)


def eager_optimizer(manifest: Manifest) -> OuterOptimizer | None:
    """What moves the overlay of `delay = eager`: the run's outer optimizer."""
    outer = manifest.outer
    return outer_from_name(outer.optimizer, outer.lr, outer.momentum) if manifest.strategy.delay == "eager" else None


def device_of(settings: StageSettings) -> str:
    """Device of this rank: "cpu", or the GPU with the local rank's number."""
    if settings.device == "cpu":
        return "cpu"
    return f"{settings.device}:{os.environ.get('LOCAL_RANK', '0')}"


def _cut_file(site: SiteConfig, run_dir: Path) -> CutFile | None:
    parallel = site.parallel
    order = SliceOrder(parallel.schedule, parallel.pipeline, parallel.stages_per_process)
    is_measured = parallel.measured_cut and parallel.pipeline > 1
    return CutFile(RunDir(run_dir).stage_cut, parallel.layers_per_stage, order) if is_measured else None


def _stream_of_identity(path: Path) -> str:
    # A site's key is its own and lasts as long as the site; its hash names the stream and never leaves the process.
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16, person=b"data-stream").hexdigest()
    except OSError as error:
        raise ConfigError(
            f"neither {PEER_VARIABLE} nor the identity key {path} tells which site this is: {reason_of(error)}"
        ) from error
