"""Layouts of trainers that a block or a machine cannot have: refused in one sentence, and trained as it is said."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import distributed as dist, nn

from dilocoxd.models import ModelConfig
from dilocoxd.trainer.parallel.tensor import cut_matrices
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig
from tests.remedies.refused.rooms.told import told

CPU: Final = torch.device("cpu")
MODEL: Final = ModelConfig("native", 64, 32, 2, 2, 1, 48, 16)
SEQUENCES: Final = 2


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def trains(**layout: Any) -> None:
    """One step of a rank with this layout."""
    pipeline = Pipeline(MODEL, PipelineConfig(1, batch_sequences=SEQUENCES, num_microbatches=1, **layout), device=CPU)
    with torch.no_grad():
        for _, parameter in pipeline.parameters():
            parameter.normal_(std=0.02)
    tokens = torch.ones((SEQUENCES, MODEL.seq_len), dtype=torch.int64)
    assert float(pipeline.train_step(tokens, tokens)) > 0


def test_a_machine_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CXX", str(tmp_path / "none"))
        with told("trainer/parallel/compiled.py", "set it to false, or install what is missing"):
            trains(is_compiled=True)
        trains(is_compiled=False)


def test_a_block_with_a_bias_that_all_ranks_would_add() -> None:
    block = Pipeline(MODEL, PipelineConfig(1, batch_sequences=SEQUENCES, num_microbatches=1), device=CPU).modules[0]
    mlp: Any = next(iter(block.blocks())).get_submodule("mlp")
    mlp.down_proj = nn.Linear(48, 32)
    with told("trainer/parallel/tensor.py", "and its matrices cannot be cut; set it to 1"):
        cut_matrices(next(iter(block.blocks())), None)
    trains(tensor=1)
