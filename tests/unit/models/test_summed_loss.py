"""Losses of a few positions at a time: those of all logits at once, in less memory."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig, StageModule, StageSpan, build_stage
from dilocoxd.trainer.data.targets import NOT_TRAINED, PartLoss, mean_loss
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig
from tests.unit.models.families import FAMILY_CONFIGS
from tests.unit.models.test_documents import NATIVE, stages
from tests.unit.models.test_families import model_of

CHUNK = 7
"""Divides neither the 24 positions of a sequence nor the 72 of the batch."""
MODELS = {"native": NATIVE, "kind llama": ModelConfig("llama", 96, 32, 4, 4, 2, 48, 24)} | {
    label: model_of(label) for label in FAMILY_CONFIGS
}


def count_rows(stage: StageModule) -> list[int]:
    """Positions of each call of the head from now on."""
    rows: list[int] = []
    head = stage.logits

    def counted(hidden: Tensor) -> Tensor:
        rows.append(hidden.numel() // hidden.shape[-1])
        return head(hidden)

    stage.logits = counted  # type: ignore[method-assign]
    return rows


def batch() -> tuple[Tensor, Tensor]:
    """Ids and targets [3, 24], of which some do not count."""
    random = torch.Generator().manual_seed(3)
    ids, targets = (torch.randint(0, 96, (3, 24), generator=random) for _ in range(2))
    targets[0, :5] = targets[2, 20:] = NOT_TRAINED
    return ids, targets


def gradients(config: ModelConfig, chunk: int) -> tuple[float, dict[str, Tensor], int]:
    """Loss, gradients by name and the most positions with logits at a time in one training step."""
    (stage,) = stages(config, 1)
    stage.train()
    stage.loss_chunk_tokens = chunk
    ids, targets = batch()
    part = PartLoss(1)
    part.begin(targets)
    rows = count_rows(stage)
    loss = part(stage(ids, targets_BT=targets) if chunk else stage(ids), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: one.grad for name, one in stage.global_parameters() if one.grad is not None}
    return float(loss.detach()), found, max(rows)


@pytest.mark.parametrize("label", MODELS)
def test_loss_and_gradients_are_those_of_all_logits_at_once(label: str) -> None:
    config = MODELS[label]
    expected, wanted, all_rows = gradients(config, 0)
    loss, found, rows = gradients(config, CHUNK)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert list(found) == list(wanted)
    for name, gradient in wanted.items():
        assert float((found[name] - gradient).abs().max()) <= 1e-5 * max(1e-3, float(gradient.abs().max())), name
    assert (all_rows, rows) == (72, CHUNK)


def test_without_gradients_too() -> None:
    (stage,) = stages(NATIVE, 1)
    stage.loss_chunk_tokens = CHUNK
    ids, targets = batch()
    rows = count_rows(stage)
    with torch.no_grad():
        found = mean_loss(stage(ids, targets_BT=targets), targets)
        assert max(rows) == CHUNK
        assert float(found) == pytest.approx(float(mean_loss(stage(ids), targets)), rel=1e-6)


def test_a_stage_before_the_last_ignores_targets() -> None:
    first = stages(NATIVE, 2)[0]
    ids, targets = batch()
    assert torch.equal(first(ids, targets_BT=targets), first(ids))
    assert build_stage(NATIVE, StageSpan(0, 2, 0, 2), device=torch.device("cpu")).loss_chunk_tokens == 0


@pytest.fixture
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_one_rank")
def test_a_model_that_takes_no_targets_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dilocoxd.models.llama.NativeStage.takes_targets", False)
    config = PipelineConfig(1, batch_sequences=2, num_microbatches=1, loss_chunk_tokens=5)
    with pytest.raises(ConfigError, match=r"parallel\.loss_chunk_tokens = 5 .* set it to 0"):
        Pipeline(NATIVE, config, device=torch.device("cpu"))
