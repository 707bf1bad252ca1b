"""What a demo's run directories say after all sites have stopped: text from the newest snapshot, size, entropy."""

from dataclasses import dataclass
from pathlib import Path

from dilocoxd.models import param_specs
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.trainer.data import PreparedData, prepare
from dilocoxd.trainer.evaluate import validation_loss
from dilocoxd.trainer.generate import DEFAULT_PROMPTS, generate_lines, load_anchor, newest_snapshot
from dilocoxd.trainer.settings import StageSettings, make_settings


@dataclass(frozen=True, slots=True)
class Outcome:
    """Facts of a finished run that no daemon is needed for."""

    run_id: str
    corpus: str
    codec: str
    unigram_entropy: float
    num_parameters: int
    snapshot_round: int
    snapshot_validation_loss: float
    """Measured here, in one process, from the snapshot's file."""
    texts: list[str]


def settings_of(run_dir: Path) -> tuple[StageSettings, PreparedData]:
    """Model and data of a run directory; the data comes from the cache that the sites used."""
    manifest, site = open_run_dir(run_dir).load()
    settings = make_settings(manifest, site, data_stream="")
    return settings, prepare(settings.data, settings.tokenizer, settings.cache_dir, lambda _: None)


def outcome(run_dirs: list[Path]) -> Outcome:
    """Look at what the sites left; text comes from the highest snapshot of any of them. ConfigError if none has one."""
    manifest, _ = open_run_dir(run_dirs[0]).load()
    settings, prepared = settings_of(run_dirs[0])
    holders = [d for d in run_dirs if any((d / "snapshots").glob("*/anchor.safetensors"))]
    snapshot = max((newest_snapshot(d) for d in holders or run_dirs), key=lambda p: int(p.parent.name))
    vector = load_anchor(snapshot, settings.model)
    lines = generate_lines(settings.model, vector, prepared)
    return Outcome(
        run_id=manifest.run_id,
        corpus=prepared.source,
        codec=manifest.strategy.codec,
        unigram_entropy=prepared.unigram_entropy,
        num_parameters=sum(spec.numel for spec in param_specs(settings.model)),
        snapshot_round=int(snapshot.parent.name),
        snapshot_validation_loss=validation_loss(settings.model, vector, prepared, settings.validation_sequences),
        texts=[prompt + "| " + line.removeprefix(prompt) for prompt, line in zip(DEFAULT_PROMPTS, lines, strict=True)],
    )
