"""Several sites that train the native model on real text in one process, with the trainer's own parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dilocoxd.models import ModelConfig, StageSpan, build_stage, init_parameter, init_std, param_specs
from dilocoxd.store.prepared import default_cache_dir
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.data.prepare import DataConfig, PreparedData, TokenizerConfig, prepare
from dilocoxd.trainer.optimizer import (
    InnerOptimizer,
    OptimizerConfig,
    clip_factor,
    gradient_sum_of_squares,
    scale_gradients,
)
from dilocoxd.wire.layout import Layout, make_layout

Inner = Literal["adamw", "muon"]
SEGMENT_ELEMENTS_MAX = 1 << 16
VALIDATION_SEQUENCES = 256
VALIDATION_BATCH = 32
CHECKPOINT_SEED = 0
CHECKPOINT_STRIDE = 20


@dataclass(frozen=True, slots=True)
class Task:
    """Model, data and the checkpoint that all presets start from.

    One machine alone trains the checkpoint, at a constant rate: the first descent is over when the sites begin, as it
    is for all but the first minutes of a real run (DiLoCo, arXiv 2311.08105, starts from a checkpoint as well).
    """

    hidden_size: int = 192
    num_layers: int = 2
    vocab_size: int = 512
    seq_len: int = 64
    batch_sequences: int = 16
    checkpoint_steps: int = 1200
    checkpoint_sequences: int = 16
    checkpoint_lr: float = 2e-3
    corpus: str = "english"

    def model(self) -> ModelConfig:
        return ModelConfig(
            kind="native",
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=4,
            num_kv_heads=4,
            intermediate_size=-(-self.hidden_size * 8 // 96) * 32,
            seq_len=self.seq_len,
        )

    def layout(self) -> Layout:
        return make_layout(param_specs(self.model()), SEGMENT_ELEMENTS_MAX)

    def data(self) -> PreparedData:
        return prepare(
            DataConfig(corpus=self.corpus),
            TokenizerConfig(vocab_size=self.vocab_size),
            default_cache_dir(),
            lambda text: print(text, flush=True),
        )

    def genesis(self, seed: int) -> Tensor:
        """x_0, as the daemons make it."""
        config, layout = self.model(), self.layout()
        flat = torch.empty(layout.numel)
        for param in layout.params:
            span = layout.span(param.name)
            std = init_std(param.name, config.init_std, config.num_layers)
            init_parameter(param.name, param.shape, seed, flat[span.start : span.stop], std=std)
        return flat


TASKS = {
    "standard": Task(),
    "small": Task(hidden_size=64, checkpoint_steps=1500, checkpoint_lr=3e-3),
    "toy": Task(hidden_size=32, num_layers=1, seq_len=32, batch_sequences=2, checkpoint_steps=0),
}
"""1.1M parameters, for the figures; 0.17M, to try settings at an eighth of the cost; one that shows that it runs."""


@dataclass(frozen=True, slots=True)
class Run:
    """What the sites of one run share. `inner_lr` is the peak rate."""

    task: Task
    data: PreparedData
    seed: int
    total_steps: int
    inner_lr: float
    inner: Inner = "adamw"
    min_lr_ratio: float = 0.0


class Site:
    """One model, its optimizer and its place in the data; parameters come and go as flat vectors."""

    def __init__(self, run: Run, name: str) -> None:
        task, config = run.task, run.task.model()
        self._batch = task.batch_sequences
        self._order = BatchOrder(run.data, task.seq_len, seed=run.seed, peer=name)
        whole = StageSpan(stage_index=0, num_stages=1, first_layer=0, end_layer=config.num_layers)
        self._model = build_stage(config, whole, device=torch.device("cpu"))
        self._params = [param for _, param in self._model.global_parameters()]
        self._settings = OptimizerConfig(
            lr=run.inner_lr, min_lr_ratio=run.min_lr_ratio, total_steps=run.total_steps, kind=run.inner
        )
        self._optimizer = InnerOptimizer(dict(self._model.global_parameters()), self._settings)

    def load(self, flat: Tensor) -> None:
        with torch.no_grad():
            nn.utils.vector_to_parameters(flat, self._params)

    def store(self, flat: Tensor) -> None:
        with torch.no_grad():
            start = 0
            for param in self._params:
                flat[start : start + param.numel()].copy_(param.reshape(-1))
                start += param.numel()

    def accumulate(self, step: int, num_parts: int = 1) -> None:
        """Add the gradient of this site's batch of `step`, divided by `num_parts`, to the model's."""
        ids, targets = self._order.batch(step * self._batch, self._batch)
        logits = self._model(ids)
        loss = functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1)) / num_parts
        loss.backward()  # type: ignore[no-untyped-call]

    def share_model_of(self, other: Site) -> None:
        """Compute on the other site's parameters from now on: gradients of both add up there."""
        self._model = other._model
        self._params = other._params

    def update(self, step: int) -> None:
        """Clip and step with the rate that belongs to `step`; gradients are gone afterwards."""
        scale_gradients(self._params, clip_factor(gradient_sum_of_squares(self._params), self._settings.clip_norm))
        self._optimizer.step(self._settings.learning_rate(step, step))
        self._optimizer.zero_grad()

    def train(self, theta: Tensor, first_step: int, num_steps: int) -> None:
        self.load(theta)
        for step in range(first_step, first_step + num_steps):
            self.accumulate(step)
            self.update(step)
        self.store(theta)

    def validation_loss(self, flat: Tensor) -> float:
        self.load(flat)
        losses = []
        with torch.no_grad():
            for ids, targets in self._order.validation_batches(VALIDATION_SEQUENCES, VALIDATION_BATCH):
                logits = self._model(ids)
                losses.append(float(functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))))
        return sum(losses) / len(losses)


def checkpoint(task: Task, data: PreparedData, progress: Callable[[int], None]) -> Tensor:
    """What all presets start from, float32[numel]."""
    if task.checkpoint_steps == 0:
        return task.genesis(CHECKPOINT_SEED)
    alone = replace(task, batch_sequences=task.checkpoint_sequences)
    steps = task.checkpoint_steps
    site = Site(Run(alone, data, CHECKPOINT_SEED, steps, task.checkpoint_lr, min_lr_ratio=1.0), "checkpoint")
    theta = task.genesis(CHECKPOINT_SEED)
    for step in range(0, steps, CHECKPOINT_STRIDE):
        site.train(theta, step, min(CHECKPOINT_STRIDE, steps - step))
        progress(step)
    return theta


def checkpoint_fields(task: Task) -> dict[str, object]:
    """The fields that the checkpoint depends on."""
    fields = dataclasses.asdict(task)
    return {key: value for key, value in fields.items() if key != "batch_sequences"}


def train_all_reduce(run: Run, start: Tensor, sites: Sequence[str], progress: Callable[[int], None]) -> float:
    """Validation loss of per-step data parallel training: the gradient of every step is the mean over the sites."""
    readers = [Site(run, name) for name in sites]
    leader = readers[0]
    leader.load(start.clone())  # parameters become views of what they are loaded from
    for reader in readers[1:]:
        reader.share_model_of(leader)
    for step in range(run.total_steps):
        for reader in readers:
            reader.accumulate(step, len(readers))
        leader.update(step)
        progress(step + 1)
    flat = torch.empty_like(start)
    leader.store(flat)
    return leader.validation_loss(flat)
