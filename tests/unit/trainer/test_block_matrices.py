"""What Muon steps in every family: the matrices inside the blocks, whatever the family calls its blocks."""

import pytest
import torch

from dilocoxd.models import param_specs
from dilocoxd.trainer.optimizer import is_block_matrix
from tests.unit.models.families import FAMILY_CONFIGS
from tests.unit.models.test_families import model_of

GPT2_BLOCK = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def chosen(label: str) -> list[str]:
    shapes = {spec.name: spec.shape for spec in param_specs(model_of(label))}
    return [name for name, shape in shapes.items() if is_block_matrix(name, torch.empty(shape, device="meta"))]


@pytest.mark.parametrize("label", sorted(set(FAMILY_CONFIGS) - {"gpt2"}))
def test_of_families_with_layers_every_matrix_in_them_counts(label: str) -> None:
    specs = param_specs(model_of(label))
    expected = [spec.name for spec in specs if len(spec.shape) == 2 and ".layers." in spec.name]
    assert expected
    assert chosen(label) == expected


def test_gpt2_calls_its_blocks_h() -> None:
    assert chosen("gpt2") == [f"transformer.h.{layer}.{name}.weight" for layer in range(4) for name in GPT2_BLOCK]


@pytest.mark.parametrize(
    ("name", "shape", "is_chosen"),
    [
        ("layers.0.mix.weight", (8, 8), True),
        ("blocks.3.attention.heads.1.query.weight", (4, 8), True),
        ("blocks.3.attention.norm.weight", (8,), False),
        ("blocks.3.convolution.weight", (8, 8, 3), False),
        ("blocks.3.position_embedding.weight", (16, 8), False),
        ("embeddings.0.weight", (96, 8), False),
        ("heads.0.weight", (96, 8), False),
        ("lm_head.weight", (96, 8), False),
        ("mix.weight", (8, 8), False),
        ("layers2.mix.weight", (8, 8), False),
    ],
)
def test_own_models_number_their_blocks(name: str, shape: tuple[int, ...], is_chosen: bool) -> None:
    assert is_block_matrix(name, torch.empty(shape, device="meta")) == is_chosen
