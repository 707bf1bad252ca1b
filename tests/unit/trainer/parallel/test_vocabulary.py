"""Embedding and head in parts: what lies where, and a loss of parts of the logits that is torch's own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from dilocoxd.models import ModelConfig, StageSpan, build_stage
from dilocoxd.models.stage import Vocabulary
from dilocoxd.trainer.data.targets import NOT_TRAINED
from dilocoxd.trainer.parallel.local import extent_of
from dilocoxd.trainer.parallel.vocabulary import PartOfVocabulary, cut_vocabulary

CONFIG = ModelConfig("native", 97, 48, 1, 4, 2, 66, 24)
POSITIONS = 30


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Of two ranks, of which there is one, the second."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    dist.destroy_process_group()


@pytest.fixture
def alone() -> Iterator[Any]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # CommDebugMode; ids have no gradient
def test_each_rank_has_a_stretch_of_the_rows_and_nobody_gathers_logits(mesh: Any) -> None:
    stage = build_stage(CONFIG, StageSpan(0, 1, 0, 1), device=torch.device("cpu"))
    with torch.no_grad():
        for _, parameter in stage.global_parameters():
            parameter.normal_(std=0.1)
    whole: Any = stage
    rows = whole.embed_tokens.weight.detach()[49:].clone()
    cut_vocabulary(stage, mesh)
    for module in (whole.embed_tokens, whole.lm_head):
        extent = extent_of(module.weight)
        assert (extent.first_row, extent.rows, extent.whole) == (49, 48, (97, 48))
        assert module.weight.to_local().untyped_storage().nbytes() == 4 * 48 * 48, "the whole matrix is kept"
    ids = torch.tensor([[3, 48, 49, 96, 50, 0]])
    assert torch.equal(whole.embed_tokens(ids)[0], torch.where(ids[0, :, None] < 49, 0.0, rows[(ids[0] - 49).clamp(0)]))
    with CommDebugMode() as told:
        stage(ids, targets_BT=ids).backward()
    # One for the embedding, two for the loss, one for the gradient of what goes into the head.
    assert told.get_total_counts() == 4 and whole.lm_head.weight.grad.to_local().shape == (48, 48)
    with pytest.raises(AssertionError, match="logits are nowhere whole"):
        stage(ids)


@pytest.mark.parametrize(("padding", "here"), [(None, None), (3, None), (49, 0), (96, 47)])
def test_the_row_that_lookups_do_not_train_is_found_among_ours(
    mesh: Any, padding: int | None, here: int | None
) -> None:
    stage: Any = build_stage(CONFIG, StageSpan(0, 1, 0, 1), device=torch.device("cpu"))
    stage.embed_tokens = nn.Embedding(97, 48, padding)
    cut_vocabulary(stage, mesh)
    assert stage.embed_tokens.padding_idx == here
    stage.embed_tokens(torch.arange(97)[None]).sum().backward()
    untrained = (stage.embed_tokens.weight.grad.to_local() == 0).all(dim=1)
    assert untrained.nonzero().flatten().tolist() == ([] if here is None else [here])


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_loss_of_parts_of_the_logits_is_the_cross_entropy(alone: Any, scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((POSITIONS, 97), generator=generator) * scale
    targets = torch.randint(0, 97, (POSITIONS,), generator=generator)
    targets[::4] = NOT_TRAINED
    found, expected = (logits.clone().requires_grad_() for _ in range(2))
    loss, of_all = PartOfVocabulary(0, alone).summed_loss(found, targets), Vocabulary().summed_loss(expected, targets)
    assert float(loss.detach()) == pytest.approx(float(of_all.detach()), rel=1e-6)
    (2 * loss).backward()
    (2 * functional.cross_entropy(expected, targets, reduction="sum")).backward()
    assert found.grad is not None and expected.grad is not None
    assert torch.allclose(found.grad, expected.grad, atol=1e-6)
