"""A few lines of text from a flat vector of parameters: what the demo shows at the end.

``python -m dilocoxd.trainer.generate RUN_DIR`` reads the newest snapshot of a run directory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dilocoxd.config.manifest import load_manifest
from dilocoxd.config.site import load_site
from dilocoxd.errors import ConfigError, DilocoxdError, reason_of
from dilocoxd.models import ModelConfig, StageModule
from dilocoxd.trainer.data import PreparedData, prepare
from dilocoxd.trainer.settings import make_settings
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer, whole_texts
from dilocoxd.trainer.whole import flat_layout, whole_model

DEFAULT_PROMPTS = ("The ", "A kind of ", "One who ", "Of or pertaining to ")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0: always the likeliest; else of the `top_k` likeliest (0: of all).
    A token of `stop_ids` ends the text."""

    num_tokens: int
    seed: int = 0
    temperature: float = 0.7
    top_k: int = 40
    stop_ids: frozenset[int] = frozenset()


def continue_ids(model: StageModule, ids: Sequence[int], seq_len: int, *, num_tokens: int, seed: int) -> list[int]:
    """``ids`` and ``num_tokens`` sampled ones; the same for the same seed."""
    return [*ids, *sampled(model, ids, seq_len, Sampling(num_tokens, seed))]


@torch.no_grad()
def sampled(model: StageModule, ids: Sequence[int], seq_len: int, sampling: Sampling) -> Iterator[int]:
    """Tokens after ``ids`` (at least one), one by one; the model sees at most ``seq_len`` tokens at a time.

    A full window goes on with its newer half, so that a cache can be used again.
    """
    generator = torch.Generator().manual_seed(sampling.seed)
    window, cache = list(ids[-seq_len:]), model.new_cache()
    fresh = window
    for _ in range(sampling.num_tokens):
        if cache is None:
            logits_V = model(torch.tensor([window]))[0, -1].float()
        else:
            logits_V = model.extend(torch.tensor([fresh]), cache)[0, -1].float()
        picked = _picked(logits_V, sampling, generator)
        if picked in sampling.stop_ids:
            return
        yield picked
        window.append(picked)
        fresh = [picked]
        if len(window) > seq_len:
            window = window[-max(1, seq_len // 2) :]
            fresh, cache = window, model.new_cache()


def _picked(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    if sampling.temperature == 0.0:
        return int(logits_V.argmax())
    best = torch.topk(logits_V / sampling.temperature, min(sampling.top_k or logits_V.numel(), logits_V.numel()))
    picked = torch.multinomial(torch.softmax(best.values, dim=0), 1, generator=generator)
    return int(best.indices[picked])


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
    tokenizer = whole_texts(load_tokenizer(prepared.tokenizer_path()))
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
        raise ConfigError(
            f"cannot read the snapshot {path}: {reason_of(error)}; give a run directory with a snapshot"
        ) from error
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
        raise ConfigError(
            f"{path} holds {values.numel()} values where the model has {numel}; give a snapshot of this run"
        )
    return values


if __name__ == "__main__":
    sys.exit(main())
