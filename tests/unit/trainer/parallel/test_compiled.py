"""Which passes are compiled, and what a machine needs for it; traced here, but not given to a C++ compiler.

Whole models through the compiler, in several layouts: `make test-compiled`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir

from dilocoxd.errors import ConfigError
from dilocoxd.models import StageModule
from dilocoxd.trainer.parallel.compiled import CODE_FOLDER, compile_blocks, keep_code_in
from dilocoxd.trainer.parallel.mesh import checkpoint_blocks

TOLERANCE = 1e-6
"""Sums of eight products in another order."""


class Row(StageModule):
    """Two alike blocks, each with a number of its own as transformers' have."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.SiLU()) for _ in range(2))

    def blocks(self) -> Iterator[nn.Module]:
        return iter(self.layers)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.layers:
            x = x + block(x)
        return x


def gradients(stage: StageModule, x: Tensor) -> list[Tensor]:
    stage.zero_grad()
    stage(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in stage.parameters() if parameter.grad is not None]


def graphs() -> int:
    """Traced and handed to the backend so far, in this process."""
    return int(counters["stats"]["unique_graphs"])


def test_compiled_blocks_compute_the_same_and_evaluations_are_not_compiled() -> None:
    torch.manual_seed(0)
    stage, x = Row(), torch.randn(4, 8)
    names = list(stage.state_dict())
    expected, evaluated, before = gradients(stage, x), stage(x[:3]).detach(), graphs()
    compile_blocks(stage, torch.device("cpu"), "aot_eager")
    checkpoint_blocks(stage)
    with torch.no_grad():
        assert torch.equal(stage(x[:3]), evaluated)
    assert graphs() == before, "an evaluation was compiled"
    for found, wanted in zip(gradients(stage, x), expected, strict=True):
        assert float((found - wanted).abs().max()) <= TOLERANCE * float(wanted.abs().max())
    traced = graphs()
    assert traced > before, "nothing was compiled"
    gradients(stage, x)
    assert graphs() == traced, "compiled again"
    assert list(stage.state_dict()) == names


def test_compiled_code_is_kept_where_the_environment_does_not_say_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CODE_FOLDER, raising=False)
    keep_code_in(tmp_path)
    keep_code_in(tmp_path / "other")
    assert os.environ[CODE_FOLDER] == str(tmp_path)


def test_a_folder_that_torch_named_for_itself_is_nobodys_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CODE_FOLDER, raising=False)
    assert cache_dir() == os.environ[CODE_FOLDER], "as its pipelines do when they are imported"
    keep_code_in(tmp_path)
    assert os.environ[CODE_FOLDER] == cache_dir() == str(tmp_path)


def test_trainer_without_a_compiler_ends_with_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigError, match=r"g\+\+ \(CXX\) is not in PATH; set it to false, or install"):
        compile_blocks(Row(), torch.device("cpu"))
