"""Parts of a trainer rank without processes: learning rate, clipping, pipeline rules, flat vectors, checkpoints."""

import math
import mmap
from pathlib import Path

import pytest
import torch
from torch import nn

from dilocoxd.config.manifest import manifest_from_tables
from dilocoxd.config.site import ParallelSection, SiteConfig
from dilocoxd.errors import ConfigError, WorkerError
from dilocoxd.models import ModelConfig, init_parameter, param_specs
from dilocoxd.trainer.data import DataConfig, PreparedData, TokenizerConfig, prepare
from dilocoxd.trainer.evaluate import validation_loss
from dilocoxd.trainer.generate import generate_lines, load_anchor, main, newest_snapshot
from dilocoxd.trainer.optimizer import (
    OptimizerConfig,
    clip_factor,
    gradient_sum_of_squares,
    make_adamw,
    scale_gradients,
)
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.pipeline import PipelineConfig
from dilocoxd.trainer.settings import load_settings, make_settings
from dilocoxd.wire.layout import ParamSpec, make_layout

# --- learning rate and clipping ---


def test_rate_warms_up_with_the_sites_own_age_and_follows_the_runs_cosine() -> None:
    config = OptimizerConfig(lr=1.0, min_lr_ratio=0.1, warmup_steps=9, total_steps=100)
    assert config.learning_rate(0, 0) == pytest.approx(0.1)
    assert config.learning_rate(0, 9) == pytest.approx(1.0)
    assert config.learning_rate(50, 100) == pytest.approx(0.55)
    assert config.learning_rate(50, 0) == pytest.approx(0.055)
    assert config.learning_rate(100, 100) == pytest.approx(0.1)
    assert config.learning_rate(10_000, 100) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "changes", [{"lr": 0.0}, {"min_lr_ratio": 2.0}, {"warmup_steps": -1}, {"total_steps": 0}, {"clip_norm": -1.0}]
)
def test_rates_that_cannot_train_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        OptimizerConfig(**changes)  # type: ignore[arg-type]


def test_clipping_scales_the_norm_over_all_stages_to_the_limit() -> None:
    params = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))]
    params[0].grad, params[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    squares = gradient_sum_of_squares(params)
    assert squares == pytest.approx(25.0)
    scale_gradients(params, clip_factor(squares, 1.0))
    assert math.sqrt(gradient_sum_of_squares(params)) == pytest.approx(1.0, rel=1e-5)
    assert clip_factor(squares, 10.0) == 1.0
    assert clip_factor(squares, 0.0) == 1.0


def test_vectors_are_not_decayed() -> None:
    matrix, vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    optimizer = make_adamw([matrix, vector], OptimizerConfig(lr=0.1, weight_decay=0.5))
    matrix.grad, vector.grad = torch.zeros(2, 2), torch.zeros(2)
    optimizer.step()
    assert torch.equal(vector, torch.ones(2))
    assert torch.allclose(matrix, torch.full((2, 2), 0.95))


# --- pipeline rules ---

ZBV = {"num_ranks": 2, "schedule": "zbvzerobubble", "stages_per_rank": 2}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_ranks": 2, "schedule": "zbv"}, "not supported"),
        ({"num_ranks": 2, "schedule": "interleaved1f1b"}, "2 stages per rank"),
        ({"num_ranks": 1, "schedule": "interleaved1f1b", "stages_per_rank": 2}, "at least 2 ranks"),
        ({"num_ranks": 2, "schedule": "1f1b", "stages_per_rank": 2}, "use interleaved1f1b"),
        ({"num_ranks": 2, "num_microbatches": 1}, "cannot fill"),
        ({"num_ranks": 2, "batch_sequences": 10, "num_microbatches": 4}, "does not divide"),
        ({"num_ranks": 3, "schedule": "interleaved1f1b", "stages_per_rank": 2, "num_microbatches": 4}, "multiple of"),
        ({"num_ranks": 0}, "at least 1"),
        ({**ZBV, "stages_per_rank": 3}, "exactly 2 stages per rank"),
        ({**ZBV, "is_checkpointed": True}, "compute each block again for both"),
        ({**ZBV, "is_compiled": True}, "cannot do with compiled blocks"),
        ({**ZBV, "is_narrow": True, "shard": 2}, "over microbatches in 16 bits"),
        ({**ZBV, "schedule": "interleavedzerobubble", "num_microbatches": 5, "batch_sequences": 20}, "multiple of"),
    ],
)
def test_unsupported_pipelines_are_one_clear_sentence(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PipelineConfig(**fields)  # type: ignore[arg-type]


# --- flat vectors ---

LAYOUT = make_layout([ParamSpec("a.weight", (2, 2)), ParamSpec("b.weight", (3,)), ParamSpec("c.weight", (1,))], 4096)


def make_flat() -> tuple[FlatParameters, nn.Parameter, nn.Parameter]:
    a, c = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(1))
    return FlatParameters([("a.weight", a), ("c.weight", c)], LAYOUT), a, c


def test_replace_takes_only_own_slices() -> None:
    flat, a, c = make_flat()
    flat.replace(torch.arange(8.0))
    assert a.tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert c.tolist() == [7.0]


def test_boundary_turns_the_base_into_the_pseudo_gradient() -> None:
    flat, a, c = make_flat()
    base = torch.arange(8.0)
    flat.replace(base)
    with torch.no_grad():
        a -= 0.5
        c += 0.25
    phase = base.clone()
    flat.subtract_from(phase)
    # The middle parameter belongs to another stage: it is still the base.
    assert phase.tolist() == [0.5, 0.5, 0.5, 0.5, 4.0, 5.0, 6.0, -0.25]


def test_each_step_of_progress_is_offered_once_when_anchors_arrive_late() -> None:
    # ALGORITHMS.md section 7 with integers: progress 1 before the boundary, 2 before the merge, 4 after it.
    flat, a, _ = make_flat()
    flat.replace(torch.zeros(8))
    with torch.no_grad():
        a += 1
    first = torch.zeros(8)
    flat.subtract_from(first)
    flat.mark_base()
    with torch.no_grad():
        a += 2
    anchor = torch.full((8,), 16.0)
    flat.merge(anchor)
    assert a.tolist() == [[18.0, 18.0], [18.0, 18.0]]
    with torch.no_grad():
        a += 4
    second = anchor.clone()
    flat.subtract_from(second)
    assert (first[0], second[0]) == (-1.0, -6.0)


def test_second_merge_in_a_phase_keeps_the_same_progress() -> None:
    flat, a, _ = make_flat()
    flat.replace(torch.zeros(8))
    flat.mark_base()
    with torch.no_grad():
        a += 2
    flat.merge(torch.full((8,), 16.0))
    flat.merge(torch.full((8,), 32.0))
    assert a[0, 0] == 34.0


def test_evaluating_other_parameters_leaves_no_trace() -> None:
    flat, a, _ = make_flat()
    flat.replace(torch.arange(8.0))
    saved = flat.save()
    flat.load(torch.zeros(8))
    assert a.abs().max() == 0
    flat.restore(saved)
    assert a.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_shared_buffer_is_mapped_not_copied() -> None:
    flat, a, _ = make_flat()
    with mmap.mmap(-1, 32) as buffer:
        view = flat.view(buffer)
        view.fill_(2.0)
        flat.replace(flat.view(buffer))
        del view
    assert a[0, 0] == 2.0


def test_buffer_of_another_model_is_refused() -> None:
    flat, _, _ = make_flat()
    with mmap.mmap(-1, 16) as buffer, pytest.raises(WorkerError, match="the model needs 32"):
        flat.view(buffer)
    with pytest.raises(WorkerError, match="the layout says"):
        FlatParameters([("a.weight", nn.Parameter(torch.zeros(4)))], LAYOUT)


# --- settings, evaluation, text ---

TINY = {"vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1,
        "intermediate_size": 16, "seq_len": 12}  # fmt: skip


def tables(corpus: Path) -> dict[str, object]:
    return {
        "run": {"name": "test"},
        "model": TINY,
        "data": {"corpus": str(corpus)},
        "inner": {"lr": 1e-3, "total_steps": 10, "batch_sequences": 4, "microbatches": 2},
        "strategy": {"inner_steps": 4},
    }


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedData:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"Number {i} is the sum of {i - 1} and one.\n" for i in range(2000)), encoding="utf-8")
    return prepare(DataConfig(str(corpus)), TokenizerConfig(300), tmp_path / "cache", lambda _: None)


def genesis() -> tuple[ModelConfig, torch.Tensor]:
    config = ModelConfig("native", **TINY)  # type: ignore[arg-type]
    pieces = []
    for spec in param_specs(config):
        piece = torch.empty(spec.numel)
        init_parameter(spec.name, spec.shape, 1, piece)
        pieces.append(piece)
    return config, torch.cat(pieces)


def test_untrained_model_is_as_good_as_guessing(prepared: PreparedData) -> None:
    config, vector = genesis()
    assert validation_loss(config, vector, prepared, 16) == pytest.approx(math.log(300), abs=0.05)
    assert validation_loss(config, vector * 0, prepared, 16) == pytest.approx(math.log(300), abs=1e-5)


def test_vector_of_another_model_is_refused(prepared: PreparedData) -> None:
    config, vector = genesis()
    with pytest.raises(ValueError, match="the vector has"):
        validation_loss(config, vector[:-1], prepared, 16)


def test_text_continues_the_prompt_and_is_the_same_each_time(prepared: PreparedData) -> None:
    config, vector = genesis()
    lines = generate_lines(config, vector, prepared, ["Number 7 is", "The sum"], num_tokens=20)
    assert lines[0].startswith("Number 7 is")
    assert lines == generate_lines(config, vector, prepared, ["Number 7 is", "The sum"], num_tokens=20)


def test_missing_and_damaged_snapshots_are_one_clear_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="there is no snapshot"):
        newest_snapshot(tmp_path)
    folder = tmp_path / "snapshots" / "12"
    folder.mkdir(parents=True)
    (folder / "anchor.safetensors").write_bytes(b"nonsense")
    config, _ = genesis()
    with pytest.raises(ConfigError, match="cannot read the snapshot"):
        load_anchor(newest_snapshot(tmp_path), config)
    assert main([str(tmp_path)]) == 78
    assert "run.toml" in capsys.readouterr().err


def test_settings_come_from_the_run_directory(tmp_path: Path) -> None:
    manifest = manifest_from_tables(tables(tmp_path / "corpus.txt"), source="test")
    (tmp_path / "run.toml").write_text(manifest.to_toml(), encoding="utf-8")
    (tmp_path / "site.toml").write_text(SiteConfig(parallel=ParallelSection(stages=2)).to_toml(), encoding="utf-8")
    (tmp_path / "identity.key").write_bytes(b"secret")
    own = load_settings({"DILOCOXD_RUN_DIR": str(tmp_path)})
    named = load_settings({"DILOCOXD_RUN_DIR": str(tmp_path), "DILOCOXD_PEER": "QmA"})
    assert (named.data_stream, named.pipeline.num_ranks) == ("QmA", 2)
    assert "secret" not in own.data_stream
    assert own.data_stream != named.data_stream


def test_site_that_cannot_run_the_manifest_is_refused(tmp_path: Path) -> None:
    manifest = manifest_from_tables(tables(tmp_path / "corpus.txt"), source="test")
    with pytest.raises(ConfigError, match="cannot fill 3 pipeline ranks"):
        make_settings(manifest, SiteConfig(parallel=ParallelSection(stages=3)), data_stream="x")


def test_trainer_started_by_hand_says_so() -> None:
    with pytest.raises(ConfigError, match="not by hand"):
        load_settings({})
