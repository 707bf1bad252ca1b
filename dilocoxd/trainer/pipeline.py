"""One site's model as a pipeline: stages of this process, the schedule that runs them, evaluation without gradients.

Schedules are torch.distributed.pipelining's. Gradient norms and commands travel on a control group that is always
gloo, whatever carries the activations. Source: LOCAL_TRAINING section 1 (which combinations are exact).
"""

# Shape legend: B sequences of one step, T positions, D hidden size, V vocabulary.
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn import functional

from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageModule, build_stage, cut_stages

SCHEDULES: Final = ("1f1b", "gpipe", "interleaved1f1b")


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """How one site runs the model. ``batch_sequences`` per step, in ``num_microbatches`` equal parts."""

    num_ranks: int
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    batch_sequences: int = 16
    num_microbatches: int = 4
    is_bfloat16: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for combinations that torch's schedules cannot run or that are not known to be exact."""
        if self.schedule not in SCHEDULES:
            raise ConfigError(
                f"pipeline schedule {self.schedule!r} is not supported: choose one of {', '.join(SCHEDULES)}"
            )
        for name in ("num_ranks", "stages_per_rank", "batch_sequences", "num_microbatches"):
            if getattr(self, name) < 1:
                raise ConfigError(f"pipeline {name} is {getattr(self, name)}: it must be at least 1")
        if self.schedule == "interleaved1f1b":
            if self.stages_per_rank < 2 or self.num_ranks < 2:
                raise ConfigError(
                    f"schedule interleaved1f1b needs at least 2 ranks and 2 stages per rank, not {self.num_ranks} and "
                    f"{self.stages_per_rank}: raise them or use 1f1b"
                )
            if self.num_microbatches % self.num_ranks:
                raise ConfigError(
                    f"schedule interleaved1f1b needs a number of microbatches ({self.num_microbatches}) that is a "
                    f"multiple of the pipeline ranks ({self.num_ranks})"
                )
        elif self.stages_per_rank != 1:
            raise ConfigError(
                f"schedule {self.schedule} runs one stage per rank, not {self.stages_per_rank}: use interleaved1f1b"
            )
        if self.num_microbatches < self.num_ranks:
            raise ConfigError(
                f"{self.num_microbatches} microbatches cannot fill {self.num_ranks} pipeline ranks: "
                f"use at least {self.num_ranks}"
            )
        if self.batch_sequences % self.num_microbatches:
            raise ConfigError(
                f"a batch of {self.batch_sequences} sequences does not divide into {self.num_microbatches} "
                "microbatches: change one of them"
            )

    @property
    def num_stages(self) -> int:
        """Stages of the whole model in this site."""
        return self.num_ranks * self.stages_per_rank


def cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean loss in nats per token; a mean because the schedules divide gradients by the number of microbatches."""
    return functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


class Pipeline:
    """The stages of this process, wired to the other ranks of the site.

    Needs an initialised default process group of exactly ``config.num_ranks`` ranks.
    """

    def __init__(self, model: ModelConfig, config: PipelineConfig, *, device: torch.device) -> None:
        """Build the local stages (parameters uninitialised). Raises ConfigError if the group has another size."""
        if dist.get_world_size() != config.num_ranks:
            raise ConfigError(
                f"the site runs {dist.get_world_size()} trainer processes but its pipeline has {config.num_ranks} ranks"
            )
        self.model = model
        self.config = config
        self.device = device
        self.rank = dist.get_rank()
        self.control = dist.new_group(backend="gloo")
        spans = cut_stages(model, config.num_stages)
        self._local_indices = list(range(self.rank, config.num_stages, config.num_ranks))
        self.modules: list[StageModule] = [
            build_stage(model, spans[index], device=device) for index in self._local_indices
        ]
        self._schedule = self._make_schedule()

    @property
    def has_first(self) -> bool:
        """True if this rank holds the embedding (rank 0)."""
        return self.rank == 0

    @property
    def has_last(self) -> bool:
        """True if this rank holds the head (the last rank)."""
        return self.rank == self.config.num_ranks - 1

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Local parameters under their global names, in canonical order of each stage."""
        for module in self.modules:
            yield from module.global_parameters()

    def train_step(self, ids_BT: Tensor, targets_BT: Tensor) -> float:
        """Gradients of one batch into ``.grad``; returns the mean loss on the last rank and 0.0 elsewhere."""
        losses: list[Tensor] = []
        inputs = (ids_BT.to(self.device),) if self.has_first else ()
        targets: dict[str, Any] = {"target": targets_BT.to(self.device), "losses": losses} if self.has_last else {}
        with self._arithmetic():
            self._schedule.step(*inputs, return_outputs=False, **targets)
        return float(torch.stack(losses).mean().detach()) if losses else 0.0

    @torch.no_grad()
    def evaluate(
        self, batches: Sequence[tuple[Tensor, Tensor]], report: Callable[[int], None] = lambda _: None
    ) -> float:
        """Mean loss over ``batches`` of (ids, targets), on all ranks. Own forward pass: schedules freeze shapes.

        ``report`` is told the number of batches done.
        """
        total = torch.zeros(1, dtype=torch.float64)
        pending: list[tuple[Any, Tensor]] = []
        for num_done, (ids_BT, targets_BT) in enumerate(batches):
            report(num_done)
            for index, module in zip(self._local_indices, self.modules, strict=True):
                x = ids_BT.to(self.device) if index == 0 else self._receive_hidden(index, ids_BT.shape)
                with self._arithmetic():
                    out = module(x)
                if index == self.config.num_stages - 1:
                    total += cross_entropy(out, targets_BT.to(self.device)).double().cpu()
                else:
                    # Not waited for at once: the next rank may still be busy with the batch before.
                    sent = out.contiguous()
                    pending.append((dist.isend(sent, dst=(index + 1) % self.config.num_ranks), sent))
        for work, _ in pending:
            work.wait()
        dist.all_reduce(total, group=self.control)
        return float(total) / len(batches)

    def _arithmetic(self) -> AbstractContextManager[Any]:
        if not self.config.is_bfloat16:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _receive_hidden(self, index: int, shape: torch.Size) -> Tensor:
        hidden_BTD = torch.empty((*shape, self.model.hidden_size), device=self.device)
        dist.recv(hidden_BTD, src=(index - 1) % self.config.num_ranks)
        return hidden_BTD

    def _make_schedule(self) -> Any:
        stages: list[Any] = [
            self._make_stage(index, module) for index, module in zip(self._local_indices, self.modules, strict=True)
        ]
        num_microbatches = self.config.num_microbatches
        if self.config.schedule == "interleaved1f1b":
            return ScheduleInterleaved1F1B(stages, num_microbatches, loss_fn=cross_entropy)
        kind = Schedule1F1B if self.config.schedule == "1f1b" else ScheduleGPipe
        return kind(stages[0], num_microbatches, loss_fn=cross_entropy)

    def _make_stage(self, index: int, module: StageModule) -> PipelineStage:
        # Static shapes: shape inference at run time would do a real forward and backward pass first.
        sequences = self.config.batch_sequences // self.config.num_microbatches
        ids = torch.zeros((sequences, self.model.seq_len), dtype=torch.int64, device="meta")
        hidden = torch.empty((*ids.shape, self.model.hidden_size), device="meta", requires_grad=True)
        logits_dtype = torch.bfloat16 if self.config.is_bfloat16 else torch.float32
        logits = torch.empty((*ids.shape, self.model.vocab_size), dtype=logits_dtype, device="meta", requires_grad=True)
        is_last = index == self.config.num_stages - 1
        return PipelineStage(
            module,
            index,
            self.config.num_stages,
            self.device,
            input_args=(ids if index == 0 else hidden,),
            output_args=(logits if is_last else hidden,),
        )
