"""Tensor parallel layers say as little as they can, and blocks that cannot be cut are told; nothing is sent here."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageSpan, build_stage
from dilocoxd.trainer.parallel.tensor import cut_matrices, cut_positions, used_in_parts

CONFIG = ModelConfig("native", 96, 48, 1, 4, 2, 66, 24)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Of two ranks, of which there is one."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    dist.destroy_process_group()


def block_of(config: ModelConfig) -> nn.Module:
    return next(iter(build_stage(config, StageSpan(0, 1, 0, 1), device=torch.device("cpu")).blocks()))


def test_attention_and_mlp_are_summed_once_in_each_direction(mesh: Any) -> None:
    block = block_of(CONFIG)
    cut_matrices(block, mesh)
    shapes = {name: tuple(param.to_local().shape) for name, param in block.named_parameters() if "proj" in name}  # type: ignore[attr-defined]
    assert shapes["self_attn.k_proj.weight"] == (12, 48) and shapes["mlp.down_proj.weight"] == (48, 33)
    hidden = torch.randn(2, 24, 48, requires_grad=True)
    with CommDebugMode() as told:
        out = block(hidden, torch.ones(24, 12), torch.zeros(24, 12))
        forward = told.get_total_counts()
        out.sum().backward()
    assert (forward, told.get_total_counts()) == (2, 4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda block: setattr(block.mlp, "down_proj", nn.Linear(66, 48)), "has mlp.down_proj.bias"),
        (lambda block: setattr(block.self_attn, "norm", nn.RMSNorm(48)), "has self_attn.norm.weight"),
        (lambda block: setattr(block, "mlp", nn.Linear(48, 48)), "has mlp.weight, and its matrices cannot be cut"),
        (lambda block: setattr(block, "self_attn", nn.Identity()), "has no self_attn.q_proj"),
    ],
)
def test_block_with_other_parts_is_refused(mesh: Any, change: Any, sentence: str) -> None:
    block = block_of(CONFIG)
    change(block)
    with pytest.raises(ConfigError, match=sentence):
        cut_matrices(block, mesh)


def test_with_positions_cut_norms_see_some_of_them_and_sums_are_made_in_halves(mesh: Any) -> None:
    block = block_of(CONFIG)
    cut_matrices(block, mesh, are_positions_cut=True)
    cut_positions([block], mesh)
    seen: dict[str, tuple[int, ...]] = {}
    for name in ("input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "mlp.down_proj"):
        module = block.get_submodule(name)
        module.register_forward_hook(lambda _, given, out, name=name: seen.update({name: tuple(out.shape)}))
    hidden = torch.randn(2, 24, 48, requires_grad=True)
    with CommDebugMode() as told:
        out = block(hidden, torch.ones(24, 12), torch.zeros(24, 12))
        forward = {str(kind).rpartition(".")[2]: count for kind, count in told.get_comm_counts().items() if count}
        out.sum().backward()
    assert seen == {
        "input_layernorm": (2, 12, 48), "post_attention_layernorm": (2, 12, 48),
        "self_attn.q_proj": (2, 24, 24), "mlp.down_proj": (2, 12, 48),
    }  # fmt: skip
    assert out.shape == (2, 24, 48) and hidden.grad is not None and hidden.grad.shape == (2, 24, 48)
    # The last one gathers what leaves the blocks; its gradient is sent nowhere, that of what enters is gathered.
    assert sorted(forward.values()) == [2, 3] and told.get_total_counts() == 10


def test_gradients_are_summed_of_what_ranks_use_in_parts(mesh: Any) -> None:
    block = block_of(replace(CONFIG, kind="qwen3"))
    cut_matrices(block, mesh)
    names = {id(param): name for name, param in block.named_parameters()}
    of_heads = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}
    assert {names[id(param)] for param in used_in_parts(block, are_positions_cut=False)} == of_heads
    of_positions = {"input_layernorm.weight", "post_attention_layernorm.weight"}
    assert {names[id(param)] for param in used_in_parts(block, are_positions_cut=True)} == of_heads | of_positions
