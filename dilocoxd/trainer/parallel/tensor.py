"""Tensor parallel layers: several ranks compute each block together, each with some of its heads and of its units.

Of projections into heads and units each rank holds rows, of those back into the hidden state columns: two sums over the
ranks in a forward pass, two in a backward pass (arXiv 1909.08053). Norms are whole on each rank, and so is the hidden
state between the blocks; embedding and head: vocabulary.py. For which families: config/site_fit.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.parallel.local import local

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


def cut_matrices(block: nn.Module, mesh: Any) -> None:
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
    plan: dict[str, Any] = {name: ColwiseParallel() for name in _BY_ROWS}
    plan |= {name: RowwiseParallel() for name in _BY_COLUMNS}
    # Nothing is sent: the values come from the anchor later.
    parallelize_module(block, mesh, plan, src_data_rank=None)
    for name in _PARTS:
        block.get_submodule(name).register_forward_pre_hook(_Entry(mesh), with_kwargs=True)


class _Entry:
    """Before attention or MLP: one hidden state for all projections, so that its gradient is summed once."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh

    def __call__(
        self, _: nn.Module, args: tuple[Any, ...], more: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (self._shared(args[0]), *args[1:]), more
        return args, {**more, "hidden_states": self._shared(more["hidden_states"])}

    def _shared(self, hidden_BTD: Tensor) -> Any:
        return DTensor.from_local(hidden_BTD, self._mesh, [Replicate()], run_check=False)


@torch.no_grad()
def sum_head_gradients(named: Iterable[tuple[str, nn.Parameter]], group: Any) -> None:
    """Gradients of what each rank of `group` has used for its own heads alone <- sums over the group."""
    found = [local(param.grad) for name, param in named if param.grad is not None and name.endswith(_OF_HEADS)]
    if not found:
        return
    total = torch.cat([grad.flatten() for grad in found])
    dist.all_reduce(total, group=group)
    for grad, whole in zip(found, torch.split(total, [grad.numel() for grad in found]), strict=True):
        grad.copy_(whole.view(grad.shape))
