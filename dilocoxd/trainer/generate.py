"""A few lines of text from a flat vector of parameters: what the demo shows at the end.

``python -m dilocoxd.trainer.generate RUN_DIR`` reads the newest snapshot of a run directory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from dilocoxd.config.manifest import load_manifest
from dilocoxd.config.site import load_site
from dilocoxd.errors import ConfigError, DilocoxdError
from dilocoxd.models import ModelConfig, StageModule
from dilocoxd.trainer.data import PreparedData, prepare
from dilocoxd.trainer.settings import make_settings
from dilocoxd.trainer.whole import flat_layout, whole_model

DEFAULT_PROMPTS = ("The ", "A kind of ", "One who ", "Of or pertaining to ")


@torch.no_grad()
def continue_ids(model: StageModule, ids: Sequence[int], seq_len: int, *, num_tokens: int, seed: int) -> list[int]:
    """``ids`` and ``num_tokens`` sampled ones (temperature 0.7, the 40 likeliest); the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    out = list(ids)
    for _ in range(num_tokens):
        context_BT = torch.tensor([out[-seq_len:]])
        logits_V = model(context_BT)[0, -1].float() / 0.7
        best = torch.topk(logits_V, min(40, logits_V.numel()))
        picked = torch.multinomial(torch.softmax(best.values, dim=0), 1, generator=generator)
        out.append(int(best.indices[picked]))
    return out


def generate_lines(
    config: ModelConfig,
    vector: Tensor,
    prepared: PreparedData,
    prompts: Sequence[str] = DEFAULT_PROMPTS,
    *,
    num_tokens: int = 48,
) -> list[str]:
    """One line of text per prompt, from the parameters in the flat ``vector``."""
    model = whole_model(config, vector)
    tokenizer = Tokenizer.from_file(str(prepared.tokenizer_path()))
    lines: list[str] = []
    for index, prompt in enumerate(prompts):
        start: list[int] = tokenizer.encode(prompt).ids
        text = tokenizer.decode(continue_ids(model, start, config.seq_len, num_tokens=num_tokens, seed=index))
        lines.append(" ".join(text.split()))
    return lines


def load_anchor(path: Path, config: ModelConfig) -> Tensor:
    """Flat vector of a snapshot's anchor.safetensors: one flat tensor, or one tensor per parameter.

    Raises ConfigError if the file is missing, damaged or of another model.
    """
    layout = flat_layout(config)
    vector = torch.empty(layout.numel)
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if len(names) == 1 and names[0] not in {param.name for param in layout.params}:
                return _checked(file.get_tensor(names[0]).reshape(-1).float(), layout.numel, path)
            for param in layout.params:
                span = layout.span(param.name)
                vector[span.start : span.stop] = _checked(
                    file.get_tensor(param.name).reshape(-1).float(), span.numel, path
                )
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read the snapshot {path}: {error}; give a run directory with a snapshot") from error
    return vector


def newest_snapshot(run_dir: Path) -> Path:
    """anchor.safetensors of the newest snapshot below ``run_dir``. Raises ConfigError if there is none."""
    found = [path for path in (run_dir / "snapshots").glob("*/anchor.safetensors") if path.parent.name.isdecimal()]
    if not found:
        raise ConfigError(
            f"there is no snapshot in {run_dir / 'snapshots'}: wait for the first one or give another run"
        )
    return max(found, key=lambda path: int(path.parent.name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print lines generated from the newest snapshot; exit code 78 if there is none."""
    parser = argparse.ArgumentParser(prog="python -m dilocoxd.trainer.generate", description="Text from a snapshot.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--prompt", action="append", help="start of a line; may be given several times")
    options = parser.parse_args(arguments)
    try:
        manifest = load_manifest(options.run_dir / "run.toml")
        settings = make_settings(manifest, load_site(options.run_dir / "site.toml"), data_stream="")
        prepared = prepare(settings.data, settings.tokenizer, settings.cache_dir, lambda _: None)
        vector = load_anchor(newest_snapshot(options.run_dir), settings.model)
        lines = generate_lines(settings.model, vector, prepared, options.prompt or DEFAULT_PROMPTS)
    except DilocoxdError as error:
        sys.stderr.write(f"error: {error}\n")
        return ConfigError.exit_code
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _checked(values: Tensor, numel: int, path: Path) -> Tensor:
    if values.numel() != numel:
        raise ConfigError(f"{path} holds {values.numel()} values where the model has {numel}: it is of another run")
    return values


if __name__ == "__main__":
    sys.exit(main())
