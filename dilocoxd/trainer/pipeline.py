"""One site's model: stages of this process, the schedule that runs them, evaluation without gradients.

A site is a mesh of ranks (trainer/parallel/mesh.py): a pipeline whose stages may be shared by several ranks each, which
then compute different sequences of the batch.

Schedules are torch.distributed.pipelining's; one rank alone has nothing to schedule, and does not import them. Gradient
norms and commands travel on a control group that is always gloo, whatever carries the activations. Source:
LOCAL_TRAINING section 1 (which combinations are exact).
"""

# Shape legend: B sequences of one step, T positions, D hidden size, V vocabulary.
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dilocoxd.config.sections.schedules import SliceOrder, schedule_problem, split_backward_problem
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageModule, StageSpan, build_stage, cut_stages
from dilocoxd.models.stage import positions_of
from dilocoxd.models.tied import TiedEmbedding
from dilocoxd.trainer.data.targets import PartLoss, mean_loss, share_trained
from dilocoxd.trainer.parallel.compiled import compile_blocks
from dilocoxd.trainer.parallel.measured_cut import StagePace
from dilocoxd.trainer.parallel.mesh import MeshPlace, SiteMesh, checkpoint_blocks, gather_gradients_at, put_back
from dilocoxd.trainer.parallel.step_clock import StepClock
from dilocoxd.trainer.parallel.traffic import NARROW, narrow_gathers, narrow_hidden


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """How one site runs the model: ``batch_sequences`` per step, in ``num_microbatches`` equal parts at each rank."""

    num_ranks: int
    schedule: str = "1f1b"
    stages_per_rank: int = 1
    batch_sequences: int = 16
    num_microbatches: int = 4
    is_bfloat16: bool = False
    replicate: int = 1
    """Copies of all, each with its part of the batch."""
    shard: int = 1
    """Ranks that hold each stage in parts; each has its part of the batch."""
    tensor: int = 1
    """Ranks that compute each block, embedding and head together, on the same part of the batch."""
    is_checkpointed: bool = False
    """Whether blocks are computed again in the backward pass."""
    loss_chunk_tokens: int = 0
    """Positions that have logits at a time, which are then computed again in the backward pass; 0: all."""
    is_narrow: bool = False
    """Whether hidden states and gathered blocks travel between ranks as bfloat16."""
    is_compiled: bool = False
    """Whether blocks are compiled (torch.compile)."""
    layers: tuple[int, ...] = ()
    """Of each stage; empty: as arithmetic says."""
    is_sequence_cut: bool = False
    """Whether the ranks along `tensor` have some positions each between the matrices of a block."""

    def __post_init__(self) -> None:
        """Raise ConfigError for combinations that torch's schedules cannot run or that are not known to be exact."""
        counts = ("num_ranks", "stages_per_rank", "batch_sequences", "num_microbatches", "replicate", "shard", "tensor")
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"pipeline {name} is {getattr(self, name)}: it must be at least 1")
        problem = schedule_problem(self.order, self.num_microbatches) or split_backward_problem(
            self.schedule,
            is_checkpointed=self.is_checkpointed,
            is_compiled=self.is_compiled,
            gathers_narrow=self.is_narrow and self.readers > 1,
        )
        if problem:
            raise ConfigError(problem)
        if self.num_microbatches < self.num_ranks:
            raise ConfigError(
                f"{self.num_microbatches} microbatches cannot fill {self.num_ranks} pipeline ranks: "
                f"use at least {self.num_ranks}"
            )
        if self.batch_sequences % (self.num_microbatches * self.readers):
            raise ConfigError(
                f"a batch of {self.batch_sequences} sequences does not divide into {self.num_microbatches} "
                f"microbatches at each of {self.readers} ranks of a stage: change one of them"
            )

    @property
    def order(self) -> SliceOrder:
        """Which rank of a pipeline has which slices of the model."""
        return SliceOrder(self.schedule, self.num_ranks, self.stages_per_rank)

    @property
    def readers(self) -> int:
        """Parts of the batch at each stage."""
        return self.replicate * self.shard

    @property
    def world_size(self) -> int:
        """Ranks of the site."""
        return self.num_ranks * self.readers * self.tensor

    @property
    def has_copies(self) -> bool:
        """Whether some parameters lie on several ranks."""
        return self.replicate > 1 or self.tensor > 1

    @property
    def gives_loss(self) -> bool:
        """Whether the last stage is told the targets and makes the loss itself, for nowhere are all logits."""
        return self.loss_chunk_tokens > 0 or self.tensor > 1

    @property
    def num_stages(self) -> int:
        """Stages of the whole model in this site."""
        return self.num_ranks * self.stages_per_rank


class Accumulation:
    """The schedule of a single rank: one part of the batch after the other, the same bits as torch's schedules give.

    Without it a site of one rank would import torch.distributed.pipelining, which costs as much as torch itself.
    """

    def __init__(self, module: StageModule, num_microbatches: int, loss_fn: PartLoss, *, is_cut: bool = False) -> None:
        """`is_cut`: other ranks hold the rest of `module`."""
        self._module = module
        self._is_cut = is_cut
        self._loss = loss_fn
        self._num_parts = num_microbatches

    def step(
        self,
        ids_BT: Tensor,
        *,
        target: Tensor,
        losses: list[Tensor],
        return_outputs: bool,
        **more: Tensor,
    ) -> None:
        """Mean gradients over all parts into ``.grad``; the loss of each part is appended to ``losses``."""
        assert not return_outputs
        split = [tensor.tensor_split(self._num_parts) for tensor in (target, ids_BT, *more.values())]
        for number, (targets, ids, *rest) in enumerate(zip(*split, strict=True), 1):
            if self._is_cut:
                gather_gradients_at(self._module, is_last=number == self._num_parts)
            loss = self._loss(self._module(ids, **dict(zip(more, rest, strict=True))), targets)
            losses.append(loss)
            torch.autograd.backward(loss)
        if self._num_parts > 1:
            for parameter in self._module.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self._num_parts)


class Pipeline:
    """The stages of this process, wired to the other ranks of the site.

    Needs an initialised default process group of exactly ``config.world_size`` ranks.
    """

    def __init__(
        self, model: ModelConfig, config: PipelineConfig, *, device: torch.device, document_end: int | None = None
    ) -> None:
        """Build the local stages (parameters uninitialised). Raises ConfigError if the group has another size.

        Behind each token `document_end` begins a document that does not see those before it; None: there is no such.
        """
        if dist.get_world_size() != config.world_size:
            raise ConfigError(
                f"the site runs {dist.get_world_size()} trainer processes but its layout has {config.world_size} ranks"
            )
        self.model = model
        self.config = config
        self.device = device
        self.clock = StepClock(device)
        """Of the newest `train_step`; times the work of a pipeline's stages."""
        self._document_end = document_end
        self.place = MeshPlace(dist.get_rank(), config.num_ranks, config.replicate, config.shard, config.tensor)
        self.control = dist.new_group(backend="gloo")
        has_mesh = self.place.in_stage > 1
        self._mesh = SiteMesh(self.place, device, is_sequence_cut=config.is_sequence_cut) if has_mesh else None
        spans = cut_stages(model, config.num_stages, config.layers)
        layers = [span.end_layer - span.first_layer for span in spans]
        self.pace = StagePace(model, config.order, layers, config.num_microbatches)
        """Of the places along the pipeline, where there are several."""
        self._local_indices = config.order.slices(self.place.stage_rank)
        self.modules: list[StageModule] = [self._built(model, spans[index]) for index in self._local_indices]
        self._loss = PartLoss(config.num_microbatches * config.readers)
        self._schedule = self._make_schedule()
        ends = {"home": self.place.at_stage(0), "away": self._rank_of(config.num_stages - 1)}
        self._tied = TiedEmbedding(self.modules, **ends, group=self.control)

    def _built(self, model: ModelConfig, span: StageSpan) -> StageModule:
        # A stage that is cut may not fit the device whole: it moves there block by block. On the CPU what nobody has
        # written yet takes no memory.
        module = build_stage(model, span, device=torch.device("cpu") if self._mesh is not None else self.device)
        if self.config.is_compiled:
            compile_blocks(module, self.device)
        if self.config.is_checkpointed:
            checkpoint_blocks(module)
        if self.config.loss_chunk_tokens:
            if not module.takes_targets:
                raise ConfigError(
                    f"parallel.loss_chunk_tokens = {self.config.loss_chunk_tokens} needs a model that takes targets,"
                    f" and {type(module).__name__} does not (takes_targets); set it to 0"
                )
            module.loss_chunk_tokens = self.config.loss_chunk_tokens
        if self.config.is_narrow:
            narrow_hidden(module)
        if self._mesh is not None:
            self._mesh.cut(module, narrow_gathers(module) if self.config.is_narrow else None)
        return module

    @property
    def has_first(self) -> bool:
        """True if this rank holds the embedding, or a part of it."""
        return self.place.stage_rank == 0

    @property
    def has_last(self) -> bool:
        """True if this rank holds the head, or a part of it."""
        return self.config.num_stages - 1 in self._local_indices

    @property
    def speaks(self) -> bool:
        """True at the one rank that answers the daemon."""
        return self.place.rank == 0

    @property
    def reports(self) -> bool:
        """True at the one rank that reports steps."""
        return self.place.rank == self.config.world_size - 1

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Local parameters under their global names, in canonical order of each stage."""
        for module in self.modules:
            yield from module.global_parameters()

    def meet_slices(self) -> None:
        """Wait for the ranks that compute each block together with this one."""
        if self._mesh is not None:
            self._mesh.meet_slices()

    def train_step(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Gradients of the site's batch into ``.grad``; the sum of what all ranks return is its mean loss."""
        losses: list[Tensor] = []
        self._loss.begin(targets_BT)
        ids_BT, targets_BT = self._mine(ids_BT), self._mine(targets_BT)
        inputs = (ids_BT.to(self.device),) if self.has_first else ()
        targets: dict[str, Any] = {"target": targets_BT.to(self.device), "losses": losses} if self.has_last else {}
        self.clock.begin()
        self._tied.lend()
        with self._arithmetic():
            self._schedule.step(*inputs, return_outputs=False, **targets, **self._known(ids_BT, targets_BT))
        self._tied.bring_home_gradient()
        if self._mesh is not None:
            self._mesh.sum_gradients_of_parts()
        if not losses or self.place.slice:
            return torch.zeros((), device=self.device)
        return torch.stack(losses).mean().detach() / self.config.readers

    def _known(self, ids_BT: Tensor, targets_BT: Tensor) -> dict[str, Tensor]:
        """What stages are told beside their input: all ranks know the batch, so nothing travels."""
        known = {}
        if self._document_end is not None:
            known["positions_BT"] = positions_of(ids_BT, self._document_end).to(self.device)
        if self.config.gives_loss and self.has_last:
            known["targets_BT"] = targets_BT.to(self.device)
        return known

    def _mine(self, rows: Tensor) -> Tensor:
        """Of the site's batch what this rank reads."""
        return rows[self.place.reader :: self.config.readers].contiguous() if self.config.readers > 1 else rows

    @torch.no_grad()
    def losses(
        self, batches: Sequence[tuple[Tensor, Tensor]], report: Callable[[int], None] = lambda _: None
    ) -> list[float]:
        """Of each of ``batches`` of (ids, targets) its mean loss times the part of its targets that count, on all
        ranks; ``BatchLosses`` makes means of them.

        Own forward pass: schedules freeze shapes. ``report`` is told the number of batches done.
        """
        self._tied.lend()
        total = torch.zeros(len(batches), dtype=torch.float64)
        mine = [self._part_to_evaluate(*batch) for batch in batches]
        pending: list[tuple[Any, Tensor]] = []
        for num_done, ((ids_BT, targets_BT), share) in enumerate(mine):
            report(num_done)
            out = ids_BT.to(self.device)
            for index, module in zip(self._local_indices, self.modules, strict=True):
                if index and not self._is_here(index - 1):
                    out = self._receive_hidden(index, ids_BT.shape)
                with self._arithmetic():
                    out = module(out, **self._known(ids_BT, targets_BT))
                if index == self.config.num_stages - 1:
                    if share and not self.place.slice:
                        loss = mean_loss(out, targets_BT.to(self.device)).double().cpu()
                        total[num_done] += loss * share
                elif not self._is_here(index + 1):
                    # Not waited for at once: the next rank may still be busy with the batch before.
                    sent = out.contiguous()
                    pending.append((dist.isend(sent, dst=self._rank_of(index + 1), group=self._group), sent))
        for work, _ in pending:
            work.wait()
        if self._mesh is not None:
            put_back(self.modules)
        dist.all_reduce(total, group=self.control)
        return list(total.tolist())

    def _part_to_evaluate(self, ids_BT: Tensor, targets_BT: Tensor) -> tuple[tuple[Tensor, Tensor], float]:
        """What this rank computes of a batch, and how much that counts.

        A rank for which nothing is left computes a sequence that does not count: the others need its parts.
        """
        mine = self._mine(ids_BT), self._mine(targets_BT)
        if not len(mine[0]):
            return (ids_BT[:1], targets_BT[:1]), 0.0
        return mine, share_trained(mine[1]) * len(mine[1]) / len(targets_BT)

    def _rank_of(self, index: int) -> int:
        """Who computes slice `index` of the model for our part of the batch."""
        return self.place.at_stage(self.config.order.rank(index))

    def _is_here(self, index: int) -> bool:
        """Whether slice `index` lies on this rank, too: where a V turns, two neighbours do."""
        return self._rank_of(index) == self.place.rank

    @property
    def _group(self) -> Any:
        """Of the ranks along our pipeline; None: all."""
        return self._mesh.pipeline_group if self._mesh is not None else None

    def _arithmetic(self) -> AbstractContextManager[Any]:
        if not self.config.is_bfloat16:
            return nullcontext()
        # A cache of the casts would hold all blocks of a cut stage at once.
        return torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=self._mesh is None)

    @property
    def _hidden_dtype(self) -> torch.dtype:
        """Of hidden states on their way."""
        return NARROW if self.config.is_narrow else torch.float32

    def _receive_hidden(self, index: int, shape: torch.Size) -> Tensor:
        hidden_BTD = torch.empty((*shape, self.model.hidden_size), dtype=self._hidden_dtype, device=self.device)
        dist.recv(hidden_BTD, src=self._rank_of(index - 1), group=self._group)
        return hidden_BTD

    def _make_schedule(self) -> Any:
        if self.config.num_stages == 1:
            is_cut = self.config.readers > 1
            return Accumulation(self.modules[0], self.config.num_microbatches, self._loss, is_cut=is_cut)
        stages = [
            self._make_stage(index, module) for index, module in zip(self._local_indices, self.modules, strict=True)
        ]
        # Only here: a second of CPU time that a site of one rank does not need.
        from dilocoxd.trainer.parallel.schedules import make_schedule

        return make_schedule(self.config.schedule, stages, self.config.num_microbatches, self._timed_loss)

    def _timed_loss(self, logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        with self.clock.computing():
            return self._loss(logits_BTV, targets_BT)

    def _make_stage(self, index: int, module: StageModule) -> Any:
        from dilocoxd.trainer.parallel.timed_stage import TimedStage

        # Static shapes: shape inference at run time would do a real forward and backward pass first.
        sequences = self.config.batch_sequences // self.config.readers // self.config.num_microbatches
        ids = torch.zeros((sequences, self.model.seq_len), dtype=torch.int64, device="meta")
        width = self.model.hidden_size
        hidden = torch.empty((*ids.shape, width), dtype=self._hidden_dtype, device="meta", requires_grad=True)
        logits_dtype = torch.bfloat16 if self.config.is_bfloat16 else torch.float32
        logits = torch.empty((*ids.shape, self.model.vocab_size), dtype=logits_dtype, device="meta", requires_grad=True)
        if self.config.gives_loss:
            logits = torch.empty((), device="meta", requires_grad=True)
        is_last = index == self.config.num_stages - 1
        return TimedStage(
            self.clock,
            module,
            index,
            self.config.num_stages,
            self.device,
            input_args=(ids if index == 0 else hidden,),
            output_args=(logits if is_last else hidden,),
            group=self._group,
        )
