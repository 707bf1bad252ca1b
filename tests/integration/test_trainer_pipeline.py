"""I16: however the model is cut and scheduled, a site computes what the plain model computes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from dilocoxd.models import StageSpan, build_stage, init_parameter, init_std
from dilocoxd.trainer.optimizer import OptimizerConfig
from tests.integration import pipeline_run

pytestmark = pytest.mark.processes

LOSS_TOLERANCE = 1e-5
"""Microbatches are averaged in another order than one big batch: float32 rounding of a mean near 4.6."""

WEIGHT_TOLERANCE = 5e-5
"""AdamW divides by the root of the second moment: rounding of tiny gradients shows up as a part of lr = 3e-3."""

BFLOAT16_TOLERANCE = 2e-2
"""8 bits of mantissa in the forward pass, on a loss near 4.6."""


@dataclass
class Outcome:
    losses: list[float]
    norms: list[float]
    evaluated: float
    weights: dict[str, torch.Tensor]


def run(out: Path, *, ranks: int, kind: str = "native", schedule: str = "1f1b", per_rank: int = 1,
        dtype: str = "float32") -> Outcome:  # fmt: skip
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0",
         f"--nproc-per-node={ranks}", pipeline_run.__file__, str(out), kind, schedule, str(per_rank), dtype],
        capture_output=True, text=True, timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((out / "found.json").read_text(encoding="utf-8"))
    weights: dict[str, torch.Tensor] = {}
    for path in sorted(out.glob("rank*.pt")):
        weights |= torch.load(path)
    return Outcome(**found, weights=weights)


def plain(kind: str) -> Outcome:
    """The same steps with the whole model, one batch, torch's own clipping and unfused AdamW."""
    config = pipeline_run.model_config(kind)
    model = build_stage(config, StageSpan(0, 1, 0, config.num_layers), device=torch.device("cpu"))
    named = dict(model.global_parameters())
    for name, param in named.items():
        init_parameter(name, param.shape, 5, param.data.view(-1), std=init_std(name, 0.05, 4))
    options: OptimizerConfig = pipeline_run.OPTIMIZER
    matrices = [p for p in named.values() if p.dim() > 1]
    vectors = [p for p in named.values() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=options.lr, betas=(options.beta1, options.beta2), eps=options.eps, foreach=False,
    )  # fmt: skip
    losses, norms = [], []
    for step, tokens in enumerate(pipeline_run.batches()):
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(named.values(), pipeline_run.CLIP)))
        losses.append(float(loss.detach()))
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate(step, step)
        optimizer.step()
        optimizer.zero_grad()
    tokens = pipeline_run.batches()[0]
    with torch.no_grad():
        evaluated = float(functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()))
    return Outcome(losses, norms, evaluated, {name: param.detach() for name, param in named.items()})


def assert_equal(found: Outcome, expected: Outcome) -> None:
    assert found.losses == pytest.approx(expected.losses, abs=LOSS_TOLERANCE)
    assert found.norms == pytest.approx(expected.norms, rel=1e-4)
    assert found.evaluated == pytest.approx(expected.evaluated, abs=1e-4)
    assert found.weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        assert float((found.weights[name] - weight).abs().max()) <= WEIGHT_TOLERANCE, name


def test_two_stages_and_one_stage_compute_the_same(tmp_path: Path) -> None:
    one = run(tmp_path / "one", ranks=1)
    two = run(tmp_path / "two", ranks=2)
    assert_equal(two, plain("native"))
    # Same microbatches in the same order: the cut itself changes nothing; only the norm is summed in another order.
    assert two.losses == pytest.approx(one.losses, abs=1e-6)
    for name, weight in one.weights.items():
        assert float((two.weights[name] - weight).abs().max()) <= 1e-6, name


@pytest.mark.parametrize(
    ("ranks", "schedule", "per_rank", "kind"),
    [
        (2, "gpipe", 1, "native"),
        (2, "interleaved1f1b", 2, "native"),
        (4, "1f1b", 1, "native"),
        (2, "1f1b", 1, "llama"),
        (2, "1f1b", 1, "qwen3"),
    ],
)
def test_every_supported_schedule_and_family_equals_the_plain_model(
    tmp_path: Path, ranks: int, schedule: str, per_rank: int, kind: str
) -> None:
    found = run(tmp_path / "out", ranks=ranks, schedule=schedule, per_rank=per_rank, kind=kind)
    assert_equal(found, plain(kind))


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    found = run(tmp_path / "out", ranks=2, dtype="bfloat16")
    assert found.losses == pytest.approx(plain("native").losses, abs=BFLOAT16_TOLERANCE)
    assert all(weight.dtype == torch.float32 for weight in found.weights.values())
