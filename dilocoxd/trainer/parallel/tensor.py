"""Tensor parallel layers: several ranks compute each block together, each with some of its heads and of its units.

Of projections into heads and units each rank holds rows, of those back into the hidden state columns: two sums over the
ranks in a forward pass, two in a backward pass (arXiv 1909.08053). Norms are whole on each rank, and so is the hidden
state between the blocks; embedding and head: vocabulary.py. For which families: config/site_fit.py.

With positions cut (arXiv 2205.05198) a rank has in a stage's blocks some positions of the hidden state: its norms,
residual stream and what a backward pass keeps of them. Each sum is then made in two halves, one behind a projection
back into the hidden state, one before the next ones. Into the first block and out of the last the state is whole, so
that families, pipelines, embedding and head know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.parallel.local import is_cut_by_tensor, local

_PARTS: Final = {
    "self_attn": (("q_proj", "k_proj", "v_proj"), "o_proj"),
    "mlp": (("gate_proj", "up_proj"), "down_proj"),
}
"""Of a block: projections whose rows are cut, and the one whose columns are."""
_BY_ROWS: Final = tuple(f"{part}.{name}" for part, (names, _) in _PARTS.items() for name in names)
_BY_COLUMNS: Final = tuple(f"{part}.{name}" for part, (_, name) in _PARTS.items())
_OF_HEADS: Final = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
"""Norms of single heads: whole on each rank, which has used them for its own heads alone."""
_CUT: Final = (
    *(f"{name}.{kind}" for name in _BY_ROWS for kind in ("weight", "bias")),
    *(f"{n}.weight" for n in _BY_COLUMNS),
)
_WHOLE: Final = Replicate()
_POSITIONS: Final = Shard(1)
"""Of a hidden state [B, T, D]."""


def cut_matrices(block: nn.Module, mesh: Any, *, are_positions_cut: bool = False) -> None:
    """Leave of a block's matrices only what this rank of `mesh`, of one dimension, computes with.

    Raises ConfigError if the block has other parts.
    """
    names = [name for name, _ in block.named_parameters()]
    strange = [name for name in names if name.startswith(tuple(_PARTS)) and name not in (*_CUT, *_OF_HEADS)]
    strange += [f"no {name}" for name in (*_BY_ROWS, *_BY_COLUMNS) if f"{name}.weight" not in names]
    if strange:
        raise ConfigError(
            f"parallel.tensor: {type(block).__name__} has {strange[0]}, and its matrices cannot be cut; set it to 1"
        )
    between = _POSITIONS if are_positions_cut else _WHOLE
    plan: dict[str, Any] = {name: ColwiseParallel() for name in _BY_ROWS}
    plan |= {name: RowwiseParallel(output_layouts=between) for name in _BY_COLUMNS}
    # Nothing is sent: the values come from the anchor later.
    parallelize_module(block, mesh, plan, src_data_rank=None)
    for name in _PARTS:
        block.get_submodule(name).register_forward_pre_hook(_Entry(mesh, between), with_kwargs=True)


def cut_positions(blocks: Sequence[nn.Module], mesh: Any) -> None:
    """The hidden state lies in parts from the first of these blocks to the last; their matrices are cut."""
    blocks[0].register_forward_pre_hook(_Passage(mesh, _WHOLE, _POSITIONS).into, with_kwargs=True)
    blocks[-1].register_forward_hook(_Passage(mesh, _POSITIONS, _WHOLE).out_of)


class _Entry:
    """Before attention or MLP: one hidden state for all projections, so that its gradient is summed once."""

    def __init__(self, mesh: Any, between: Any) -> None:
        self._mesh = mesh
        self._between = between

    def __call__(self, _: nn.Module, args: tuple[Any, ...], more: dict[str, Any]) -> Inputs:
        return _with_hidden(self._shared, args, more)

    def _shared(self, hidden_BTD: Tensor) -> Any:
        found = DTensor.from_local(hidden_BTD, self._mesh, [self._between], run_check=False)
        return found if self._between is _WHOLE else found.redistribute(placements=[_WHOLE])


class _Passage:
    """The hidden state becomes another part of what it was; backward the gradient does, for nobody adds to it here."""

    def __init__(self, mesh: Any, before: Any, after: Any) -> None:
        self._mesh = mesh
        self._before, self._after = before, after

    def into(self, _: nn.Module, args: tuple[Any, ...], more: dict[str, Any]) -> Inputs:
        """Hook before a module."""
        return _with_hidden(self._passed, args, more)

    def out_of(self, _: nn.Module, args: Any, hidden_BTD: Tensor) -> Tensor:
        """Hook behind a module."""
        return self._passed(hidden_BTD)

    def _passed(self, hidden_BTD: Tensor) -> Tensor:
        found = DTensor.from_local(hidden_BTD, self._mesh, [self._before], run_check=False)
        return found.redistribute(placements=[self._after]).to_local()


Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def _with_hidden(change: Any, args: tuple[Any, ...], more: dict[str, Any]) -> Inputs:
    if args:
        return (change(args[0]), *args[1:]), more
    return args, {**more, "hidden_states": change(more["hidden_states"])}


def used_in_parts(block: nn.Module, *, are_positions_cut: bool) -> Iterator[nn.Parameter]:
    """What is whole on each rank, which has used it for a part alone: of its heads, or of its positions."""
    for name, param in block.named_parameters():
        if name.endswith(_OF_HEADS) or (are_positions_cut and not is_cut_by_tensor(param)):
            yield param


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter], group: Any) -> None:
    """Gradients that are parts of sums on each rank of `group` <- the sums."""
    found = [local(param.grad) for param in parameters if param.grad is not None]
    if not found:
        return
    total = torch.cat([grad.flatten() for grad in found])
    dist.all_reduce(total, group=group)
    for grad, whole in zip(found, torch.split(total, [grad.numel() for grad in found]), strict=True):
        grad.copy_(whole.view(grad.shape))
