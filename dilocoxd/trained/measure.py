"""How well a shared state predicts text: validation loss of the run, and perplexity on a file of one's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from dilocoxd.config.site import load_site
from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.models import StageModule
from dilocoxd.models.stage import positions_of
from dilocoxd.trained.choose import Tell
from dilocoxd.trained.found import StoredRun
from dilocoxd.trained.load import load_model
from dilocoxd.trained.tokenizer import TokenizerFiles
from dilocoxd.trainer.data import DataConfig, TokenizerConfig, prepare
from dilocoxd.trainer.data.order import BatchOrder, SampleOrder
from dilocoxd.trainer.data.sources import SourceOrder, sources_of
from dilocoxd.trainer.data.targets import cross_entropy, mean_over, share_trained
from dilocoxd.trainer.tokens.limits import TokenizerApart
from dilocoxd.trainer.tokens.vocabulary import require_known

_TEXT_BYTES_MAX: Final = 64 << 20
"""The library needs a hundred bytes of memory for each token of a text, and a model hours for so much on a CPU."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`loss` in nats per predicted token; `bits_per_byte` is 0 where the bytes are not known."""

    source: str
    round: int
    loss: float
    num_tokens: int
    bits_per_byte: float = 0.0

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is too large for a float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


@torch.no_grad()
def total_loss(model: StageModule, ids: Sequence[int], seq_len: int) -> tuple[float, int]:
    """(sum of the losses in nats, number of predicted tokens) of a text.

    In windows of `seq_len` tokens that follow each other: each token but the first is predicted once, from what
    precedes it in its window.
    """
    total, count = 0.0, 0
    for start in range(0, len(ids) - 1, seq_len):
        window_T = torch.tensor(ids[start : start + seq_len + 1])
        logits_TV = model(window_T[None, :-1])[0].float()
        total += float(functional.cross_entropy(logits_TV, window_T[1:], reduction="sum"))
        count += len(window_T) - 1
    return total, count


def measure_text(run: StoredRun, number: int | None, files: TokenizerFiles, path: Path, tell: Tell) -> Measured:
    """Perplexity on a text file. Raises ConfigError for a file that is no text, too short or too long, for a tokenizer
    that is none or not the model's, and as `load_model`."""
    try:
        with path.open("rb") as file:
            data = file.read(_TEXT_BYTES_MAX + 1)
        if len(data) > _TEXT_BYTES_MAX:
            raise ConfigError(f"{path}: has more than {_TEXT_BYTES_MAX >> 20} MiB; give a part of it")
        text = data.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")  # as a file opened for text gives it
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({reason_of(error)}); give a text file") from error
    with TokenizerApart(files.path) as tokenizer:
        ids = tokenizer.encode(text)
    require_known(ids, run.manifest.model.vocab_size, files.path)
    if len(ids) < 2:
        raise ConfigError(f"{path}: has {len(ids)} tokens, at least 2 are needed to predict one; give a longer text")
    model, anchor = load_model(run, number, tell)
    total, count = total_loss(model, ids, run.manifest.model.seq_len)
    bits = total / math.log(2) / max(1, len(text.encode()))
    return Measured(str(path), anchor.round, total / count, count, bits)


@torch.no_grad()
def measure_validation(run: StoredRun, number: int | None, cache: Path, tell: Tell) -> list[Measured]:
    """The run's own validation loss: held-out text, as the trainers measure it; of several token stores then each.

    Raises ConfigError, StoreError.
    """
    manifest = run.manifest
    order = _order(run, cache, tell)
    held = order.validation_by_source(manifest.data.validation_sequences, manifest.inner.batch_sequences)
    model, anchor = load_model(run, number, tell)
    found = {name: _mean_loss(model, batches, order.document_end) for name, batches in held.items()}
    whole = Measured("validation", anchor.round, mean_over(found), round(sum(count for _, count in found.values())))
    if len(found) == 1:
        return [whole]
    return [whole, *(Measured(name, anchor.round, loss, round(count)) for name, (loss, count) in found.items())]


def _order(run: StoredRun, cache: Path, tell: Tell) -> SampleOrder:
    manifest = run.manifest
    if not manifest.data.sources:
        prepared = prepare(DataConfig.from_manifest(manifest), TokenizerConfig.from_manifest(manifest), cache, tell)
        return BatchOrder(prepared, manifest.model.seq_len, seed=0, peer="")
    if run.run_dir is None or not run.run_dir.site_toml.is_file():
        raise ConfigError(f"{run.snapshots}: give a run directory, whose site.toml knows where the token stores are")
    sources = sources_of(manifest, load_site(run.run_dir.site_toml))
    return SourceOrder(
        sources,
        manifest.model.seq_len,
        manifest.model.vocab_size,
        seed=0,
        has_document_mask=manifest.data.document_mask,
    )


def _mean_loss(
    model: StageModule, batches: Sequence[tuple[Tensor, Tensor]], document_end: int | None
) -> tuple[float, float]:
    """(mean loss, number of targets that count)."""

    def logits_of(ids_BT: Tensor) -> Tensor:
        found: Tensor = model(ids_BT) if document_end is None else model(ids_BT, positions_of(ids_BT, document_end))
        return found

    losses = [
        (float(cross_entropy(logits_of(ids_BT), targets_BT)), share_trained(targets_BT))
        for ids_BT, targets_BT in batches
        if share_trained(targets_BT)
    ]
    count = sum(share_trained(targets_BT) * targets_BT.numel() for _, targets_BT in batches)
    shares = sum(share for _, share in losses)
    return (sum(loss * share for loss, share in losses) / shares if shares else 0.0), count
