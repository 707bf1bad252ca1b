"""The whole model of a shared state in this process, its parameters read straight from the file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from dilocoxd.config.site import load_site
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageModule, StageSpan, build_stage
from dilocoxd.models.frozen import FrozenModel, fill_frozen, frozen_of
from dilocoxd.trained.anchor import AnchorFile, AnchorReader
from dilocoxd.trained.choose import Tell, found_anchor
from dilocoxd.trained.found import StoredRun, newest_round


def load_model(run: StoredRun, number: int | None, tell: Tell) -> tuple[StageModule, AnchorFile]:
    """The model of round `number` (None: of the newest snapshot), in evaluation mode on the CPU.

    Raises ConfigError and StoreError, as export does.
    """
    rounds = [newest_round(run) if number is None else number]
    with tempfile.TemporaryDirectory(prefix="dilocoxd-") as folder:
        anchor, _ = found_anchor(run, rounds, Path(folder) / "anchor", tell)
        model = filled(ModelConfig.of_run(run.manifest), anchor)
    frozen = frozen_model(run)
    if frozen is not None:
        fill_frozen([model], frozen.open(tell))
    return model, anchor


def frozen_model(run: StoredRun) -> FrozenModel | None:
    """The model under the run's adapter, where its site.toml says it is. Raises ConfigError."""
    if not run.manifest.lora.rank:
        return None
    if run.run_dir is None or not run.run_dir.site_toml.is_file():
        raise ConfigError(f"{run.snapshots}: this run trains an adapter; give a run directory, which knows its model")
    site = load_site(run.run_dir.site_toml)
    return frozen_of(run.manifest, site.paths.base, run.run_dir.path)


@torch.no_grad()
def filled(config: ModelConfig, anchor: AnchorFile) -> StageModule:
    """The model with the parameters of a file, never twice in memory."""
    span = StageSpan(stage_index=0, num_stages=1, first_layer=0, end_layer=config.num_layers)
    module = build_stage(config, span, device=torch.device("cpu"))
    parameters = dict(module.global_parameters())
    if [(entry.name, entry.shape) for entry in anchor.entries] != [
        (name, tuple(param.shape)) for name, param in parameters.items()
    ]:
        raise ConfigError(f"{anchor.path} does not hold the parameters of this run's model; give its own snapshot")
    with anchor.open() as file:
        reader = AnchorReader(anchor, file)
        for entry in anchor.entries:
            values, start = parameters[entry.name].view(-1), 0
            for piece in reader.pieces(entry):
                values[start : start + len(piece)].copy_(torch.from_numpy(piece.copy()))
                start += len(piece)
        reader.finish()
    return module.eval()
