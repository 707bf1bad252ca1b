"""Embedding and head in parts: of the vocabulary each rank along `tensor` holds a stretch, rows of both matrices.

Embedding: what lies elsewhere is zero here, then one sum over the ranks. Head: each rank has the logits of its stretch,
and nobody gathers them: of each position the loss needs the largest logit, the sum of the exponentials and the logit of
the target, two sums of a few numbers. Source: arXiv 1909.08053 section 3.
"""

# Shape legend: B sequences, T positions, N positions of all sequences, D hidden size, V logits of this rank.
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from dilocoxd.models import StageModule
from dilocoxd.models.stage import Vocabulary, rows_here
from dilocoxd.trainer.data.targets import NOT_TRAINED
from dilocoxd.trainer.parallel.local import extent_of


def cut_vocabulary(stage: StageModule, mesh: Any) -> None:
    """Leave of the stage's embedding and head only the rows of this rank of `mesh`, of one dimension.

    Rows are dealt as torch's chunk does: where their number does not divide, the last ranks have fewer.
    """
    for module, name in stage.token_matrices():
        weight = module.get_parameter(name)
        part = nn.Parameter(_rows_of(weight, mesh), requires_grad=weight.requires_grad)
        module.register_parameter(name, part)
        extent = extent_of(part)
        inside: Any = module
        if isinstance(module, nn.Embedding):
            inside.forward = _LookUp(module, extent.first_row, extent.rows, mesh.get_group())
        elif isinstance(module, nn.Linear):
            inside.forward = partial(_with_rows_here, module, inside.forward)
        if stage.span.is_last:
            stage.vocabulary = PartOfVocabulary(extent.first_row, mesh.get_group())


@torch.no_grad()
def _rows_of(weight: Tensor, mesh: Any) -> DTensor:
    each = -(-len(weight) // mesh.size())
    # Copied: a view would keep the whole matrix.
    part = weight[each * mesh.get_local_rank() :][:each].clone()
    return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=weight.shape, stride=weight.stride())


def _with_rows_here(module: nn.Module, forward: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
    # With the family's own forward pass, which may do more (Gemma scales); it knows nothing of torch's DTensor.
    parameters: Any = module._parameters
    cut = parameters["weight"]
    parameters["weight"] = rows_here(cut)
    try:
        return forward(given)
    finally:
        parameters["weight"] = cut


class _LookUp:
    """In the place of an embedding's forward pass."""

    def __init__(self, embedding: nn.Embedding, first: int, rows: int, group: Any) -> None:
        self._found = partial(_with_rows_here, embedding, embedding.forward)
        self._first, self._rows, self._group = first, rows, group
        # The row that lookups do not train is one of ours, or of another rank.
        padding = embedding.padding_idx
        here = padding - first if padding is not None else -1
        embedding.padding_idx = here if 0 <= here < rows else None

    def __call__(self, ids_BT: Tensor) -> Tensor:
        """Hidden states [B, T, D], whole on each rank."""
        here_BT = ids_BT - self._first
        is_away_BT = (here_BT < 0) | (here_BT >= self._rows)
        found_BTD = self._found(here_BT.masked_fill(is_away_BT, 0))
        summed: Tensor = _Summed.apply(found_BTD.masked_fill(is_away_BT.unsqueeze(-1), 0.0), self._group)  # type: ignore[no-untyped-call]
        return summed


class PartOfVocabulary(Vocabulary):
    """Of a last stage whose logits lie in parts on the ranks of a group."""

    is_whole = False

    def __init__(self, first: int, group: Any) -> None:
        """`first` token whose logit is here."""
        self._first = first
        self._group = group

    def entered(self, hidden: Tensor) -> Tensor:
        """The same; its gradient is the sum over the ranks of what each has for its logits."""
        shared: Tensor = _Shared.apply(hidden, self._group)  # type: ignore[no-untyped-call]
        return shared

    def summed_loss(self, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        """See Vocabulary; the same on each rank, and each has it whole."""
        loss: Tensor = _CrossEntropy.apply(logits_NV, targets_N, self._first, self._group)  # type: ignore[no-untyped-call]
        return loss


class _Summed(torch.autograd.Function):
    """Sum over a group, in place; what comes back is whole on each rank, and so is its gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        ctx.mark_dirty(part)
        dist.all_reduce(part, group=group)
        return part

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Shared(torch.autograd.Function):
    """What is whole on each rank of a group, and of which each computes a part of what follows."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _CrossEntropy(torch.autograd.Function):
    """Sum of -log softmax at the targets that count, of logits whose columns lie on the ranks of a group."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, first: int, group: Any) -> Tensor:
        largest_N = logits_NV.amax(dim=1)
        dist.all_reduce(largest_N, op=dist.ReduceOp.MAX, group=group)
        values_NV = logits_NV - largest_N.unsqueeze(1)
        here_N = targets_N - first
        # One that does not count is below any token, so at no rank.
        is_here_N = (here_N >= 0) & (here_N < logits_NV.shape[1])
        here_N = here_N.masked_fill(~is_here_N, 0)
        at_target_N = values_NV.gather(1, here_N.unsqueeze(1)).squeeze(1).masked_fill(~is_here_N, 0.0)
        values_NV.exp_()
        sums = torch.stack((values_NV.sum(dim=1), at_target_N))
        dist.all_reduce(sums, group=group)
        counts_N = targets_N != NOT_TRAINED
        ctx.save_for_backward(values_NV.div_(sums[0].unsqueeze(1)), here_N, is_here_N, counts_N)
        return (sums[0].log() - sums[1]).masked_fill(~counts_N, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        softmax_NV, here_N, is_here_N, counts_N = ctx.saved_tensors
        of_logits_NV = softmax_NV * (counts_N * gradient).unsqueeze(1)
        at_target_N = (is_here_N * -gradient).unsqueeze(1)
        return of_logits_NV.scatter_add_(1, here_N.unsqueeze(1), at_target_N), None, None, None
