"""Inner optimizers and their checkpoints: which parameters Muon steps, and that a restart continues bit for bit."""

import math
import resource
from pathlib import Path

import pytest
import torch
from torch import nn

from dilocoxd.trainer.checkpoint import (
    CheckpointWriter,
    Progress,
    copy_moments,
    load_moments,
    moment_pieces,
    newest_complete,
    read_moments,
)
from dilocoxd.trainer.optimizer import AdamW, InnerOptimizer, Muon, OptimizerConfig, make_adamw
from dilocoxd.trainer.parallel.local import Extent


def trained() -> tuple[torch.optim.Optimizer, dict[str, nn.Parameter]]:
    named = {"a": nn.Parameter(torch.ones(3, 2)), "b": nn.Parameter(torch.ones(4))}
    optimizer = make_adamw(named.values(), OptimizerConfig())
    for index in range(3):
        for param in named.values():
            param.grad = torch.full_like(param, 0.1 * (index + 1))
        optimizer.step()
    return optimizer, named


def adamw_shapes(shapes: dict[str, tuple[int, ...]]) -> dict[str, Extent]:
    return {
        f"{name}.{moment}": Extent.whole_of(shape)
        for name, shape in shapes.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }


def write(directory: Path, stage: int, num_ranks: int, progress: Progress, names: str) -> None:
    optimizer, named = trained()
    writer = CheckpointWriter(stage, num_ranks)
    assert writer.write(directory, progress, copy_moments(optimizer, {name: named[name] for name in names}))
    writer.finish()
    assert writer.error == ""


def test_moments_continue_bit_for_bit(tmp_path: Path) -> None:
    progress = Progress(global_step=3, optimizer_step=3, position=12, shared_step=40, own_position=5)
    write(tmp_path, 0, 1, progress, "ab")
    folder = newest_complete(tmp_path)
    assert folder is not None
    found = read_moments(folder, adamw_shapes({"a": (3, 2), "b": (4,)}))
    assert found is not None
    assert found[0] == progress
    optimizer, named = trained()
    fresh_named = {name: nn.Parameter(param.detach().clone()) for name, param in named.items()}
    fresh = make_adamw(fresh_named.values(), OptimizerConfig())
    load_moments(fresh, fresh_named, found[1], 3)
    for params, stepper in ((named, optimizer), (fresh_named, fresh)):
        for param in params.values():
            param.grad = torch.full_like(param, 0.7)
        stepper.step()
    assert all(torch.equal(named[name], fresh_named[name]) for name in named)


MUON = OptimizerConfig(kind="muon", lr=0.01, weight_decay=0.1)


def muon_parameters() -> dict[str, nn.Parameter]:
    """Two blocks of one matrix and one vector each, and an embedding."""
    generator = torch.Generator().manual_seed(3)
    shapes = {f"model.layers.{block}.{kind}": shape for block in (0, 1) for kind, shape in (("w", (6, 4)), ("n", (4,)))}
    shapes["model.embed_tokens.weight"] = (5, 4)
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def step(optimizer: InnerOptimizer, named: dict[str, nn.Parameter], seed: int) -> None:
    for name, param in named.items():
        generator = torch.Generator().manual_seed(seed + sum(name.encode()))
        param.grad = torch.randn(param.shape, generator=generator)
    optimizer.step(0.01)
    optimizer.zero_grad()


def test_muon_steps_block_matrices_only_and_with_orthogonal_directions() -> None:
    named = muon_parameters()
    before = {name: param.detach().clone() for name, param in named.items()}
    optimizer = InnerOptimizer(named, OptimizerConfig(kind="muon", weight_decay=0.0))
    assert {type(part): sorted(held) for part, held in optimizer.parts} == {
        AdamW: ["model.embed_tokens.weight", "model.layers.0.n", "model.layers.1.n"],
        Muon: ["model.layers.0.w", "model.layers.1.w"],
    }
    step(optimizer, named, 1)
    moved = {name: (param.detach() - before[name]) / 0.01 for name, param in named.items()}
    singular = torch.linalg.svdvals(moved["model.layers.0.w"]) / (0.2 * math.sqrt(6))
    assert bool(((singular > 0.6) & (singular < 1.3)).all()), "five Newton-Schulz steps come near 1"
    assert torch.allclose(moved["model.embed_tokens.weight"].abs(), torch.ones(5, 4), atol=1e-3), "AdamW's first step"


def test_muon_steps_do_not_depend_on_how_the_blocks_are_spread_over_stages() -> None:
    whole, cut = muon_parameters(), muon_parameters()
    stages = [{n: p for n, p in cut.items() if (".layers.1." in n) == is_last} for is_last in (False, True)]
    one, two = InnerOptimizer(whole, MUON), [InnerOptimizer(stage, MUON) for stage in stages]
    for index in range(3):
        step(one, whole, index)
        for optimizer, stage in zip(two, stages, strict=True):
            step(optimizer, stage, index)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_muon_continues_bit_for_bit_from_a_checkpoint_and_adamw_does_not_take_it(tmp_path: Path) -> None:
    named = muon_parameters()
    optimizer = InnerOptimizer(named, MUON)
    for index in range(3):
        step(optimizer, named, index)
    writer = CheckpointWriter(0, 1)
    writer.write(
        tmp_path, Progress(3, 3, 12, 40), {k: v for part in optimizer.parts for k, v in copy_moments(*part).items()}
    )
    writer.finish()
    folder = newest_complete(tmp_path)
    assert folder is not None
    fresh_named = {name: nn.Parameter(param.detach().clone()) for name, param in named.items()}
    fresh = InnerOptimizer(fresh_named, MUON)
    found = read_moments(folder, {k: v for part in fresh.parts for k, v in moment_pieces(*part).items()})
    assert found is not None
    for part in fresh.parts:
        load_moments(*part, found[1], 3)
    step(optimizer, named, 9)
    step(fresh, fresh_named, 9)
    assert all(torch.equal(named[name], fresh_named[name]) for name in named)
    adamw = InnerOptimizer(named, OptimizerConfig())
    assert read_moments(folder, {k: v for part in adamw.parts for k, v in moment_pieces(*part).items()}) is None


def test_only_complete_sets_count_and_old_ones_go(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, 1, 2, Progress(global_step=step), "b")
        write(tmp_path, 0, 2, Progress(global_step=step), "a")
    write(tmp_path, 0, 2, Progress(global_step=5), "a")
    folder = newest_complete(tmp_path)
    assert folder is not None
    assert folder.name == f"{4:012d}"
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == [3, 4, 5]


@pytest.mark.parametrize("shapes", [{"a": (3, 3)}, {"a": (3, 2), "z": (1,)}])
def test_checkpoint_of_another_model_does_not_fit(tmp_path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    write(tmp_path, 0, 1, Progress(global_step=1), "ab")
    folder = newest_complete(tmp_path)
    assert folder is not None
    assert read_moments(folder, adamw_shapes(shapes)) is None


def grid(shape: tuple[int, int], down: int, across: int) -> list[Extent]:
    """A matrix cut as ranks hold it: even parts, a last one that may be smaller."""
    rows, columns = -(-shape[0] // down), -(-shape[1] // across)
    return [
        Extent(shape, top, min(rows, shape[0] - top), left, min(columns, shape[1] - left))
        for top in range(0, shape[0], rows)
        for left in range(0, shape[1], columns)
    ]


@pytest.mark.parametrize("saved", [(1, 1), (3, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("wanted", [(1, 1), (4, 1), (1, 3), (3, 2)])
def test_blocks_of_one_layout_are_put_together_from_those_of_another(
    tmp_path: Path, saved: tuple[int, int], wanted: tuple[int, int]
) -> None:
    whole, blocks = torch.arange(77.0).view(7, 11), grid((7, 11), *saved)
    for number, block in enumerate(blocks):
        writer = CheckpointWriter(number, len(blocks))
        writer.write(tmp_path, Progress(1), {"w": block.of_matrix(whole).contiguous()}, {"w": block})
        writer.finish()
    folder = newest_complete(tmp_path)
    assert folder is not None
    for block in grid((7, 11), *wanted):
        found = read_moments(folder, {"w": block})
        assert found is not None
        assert torch.equal(found[1]["w"], block.of_matrix(whole))


def test_torn_file_and_missing_folder_are_no_checkpoint(tmp_path: Path) -> None:
    assert newest_complete(tmp_path / "none") is None
    write(tmp_path, 0, 1, Progress(global_step=1), "ab")
    folder = newest_complete(tmp_path)
    assert folder is not None
    path = folder / "stage-0-of-1.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    assert read_moments(folder, adamw_shapes({"a": (3, 2)})) is None


def test_full_disk_is_told_and_nothing_of_the_file_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 0, 1, Progress(global_step=1), "ab")
    writer, before = CheckpointWriter(0, 1), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        writer.write(tmp_path, Progress(global_step=2), {"a.exp_avg": torch.ones(4096)})
        writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "no checkpoint of step 2" in caplog.text and "File too large" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001"], "each boundary would leave one more"
    writer.write(tmp_path, Progress(global_step=3), {"a.exp_avg": torch.ones(4096)})
    writer.finish()
    assert newest_complete(tmp_path) == tmp_path / "000000000003", "it is tried again"


def test_disk_that_refuses_is_remembered_and_training_goes_on(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way", encoding="utf-8")
    writer = CheckpointWriter(0, 1)
    writer.write(blocked, Progress(), {})
    writer.finish()
    assert "checkpoint in" in writer.error
