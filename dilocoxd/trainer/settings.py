"""What the trainers of one site take from run.toml, site.toml and the environment, in their own words."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import SiteConfig, load_site
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig
from dilocoxd.outer.optimizers import OuterOptimizer, outer_from_name
from dilocoxd.trainer.data import DataConfig, TokenizerConfig, default_cache_dir
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.pipeline import PipelineConfig

RUN_DIR_VARIABLE: Final = "DILOCOXD_RUN_DIR"
PEER_VARIABLE: Final = "DILOCOXD_PEER"


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Everything a trainer rank needs to know before it meets the daemon's commands."""

    model: ModelConfig
    pipeline: PipelineConfig
    optimizer: OptimizerConfig
    data: DataConfig
    tokenizer: TokenizerConfig
    cache_dir: Path
    data_seed: int
    data_stream: str
    """Names this site's order of the data; no two sites share one."""
    validation_sequences: int
    eager_optimizer: OuterOptimizer | None
    """Moves the site's overlay (trainer/overlay.py); None unless strategy.delay = eager."""
    fragments: int
    """Parts that strategy.delay = streaming exchanges in turn; 0 with any other delay."""
    mix_alpha: float
    segment_elements_max: int
    backend: str
    device: str
    num_threads: int


def load_settings(environment: Mapping[str, str]) -> TrainerSettings:
    """Settings of the run directory that the environment names. Raises ConfigError."""
    if RUN_DIR_VARIABLE not in environment:
        raise ConfigError(f"{RUN_DIR_VARIABLE} is not set: the trainer is started by dilocoxd, not by hand")
    run_dir = Path(environment[RUN_DIR_VARIABLE])
    manifest = load_manifest(run_dir / "run.toml")
    site = load_site(run_dir / "site.toml")
    stream = environment.get(PEER_VARIABLE) or _stream_of_identity(run_dir / site.paths.identity)
    return make_settings(manifest, site, data_stream=stream)


def make_settings(manifest: Manifest, site: SiteConfig, *, data_stream: str) -> TrainerSettings:
    """Settings for ``manifest`` at the site ``site``. Raises ConfigError for a contradiction between the two."""
    inner = manifest.inner
    return TrainerSettings(
        model=ModelConfig.from_section(manifest.model),
        pipeline=PipelineConfig(
            num_ranks=site.parallel.stages,
            schedule=site.parallel.schedule,
            stages_per_rank=site.parallel.stages_per_process,
            batch_sequences=inner.batch_sequences,
            num_microbatches=site.parallel.microbatches or inner.microbatches,
            is_bfloat16=inner.dtype == "bfloat16",
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
        data=DataConfig.from_manifest(manifest),
        tokenizer=TokenizerConfig.from_manifest(manifest),
        cache_dir=Path(site.paths.cache).expanduser() if site.paths.cache else default_cache_dir(),
        data_seed=manifest.seeds.data,
        data_stream=data_stream,
        validation_sequences=manifest.data.validation_sequences,
        eager_optimizer=eager_optimizer(manifest),
        fragments=manifest.strategy.fragments,
        mix_alpha=manifest.strategy.mix_alpha,
        segment_elements_max=manifest.strategy.segment_elements_max,
        backend=site.parallel.backend,
        device=site.parallel.device,
        num_threads=site.parallel.threads_per_rank,
    )


def eager_optimizer(manifest: Manifest) -> OuterOptimizer | None:
    """What moves the overlay of `delay = eager`: the run's outer optimizer."""
    outer = manifest.outer
    return outer_from_name(outer.optimizer, outer.lr, outer.momentum) if manifest.strategy.delay == "eager" else None


def device_of(settings: TrainerSettings) -> str:
    """Device of this rank: "cpu", or the GPU with torchrun's local rank."""
    if settings.device == "cpu":
        return "cpu"
    return f"{settings.device}:{os.environ.get('LOCAL_RANK', '0')}"


def _stream_of_identity(path: Path) -> str:
    # A site's key is its own and lasts as long as the site; its hash names the stream and never leaves the process.
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16, person=b"data-stream").hexdigest()
    except OSError as error:
        raise ConfigError(f"neither {PEER_VARIABLE} nor the identity key tells which site this is: {error}") from error
