"""ALGORITHMS I16: however the model is cut and scheduled, a site computes what the plain model computes."""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from dilocoxd.daemon.settings import FAMILY_MODULES
from dilocoxd.daemon.workers.forked import PIPELINE_MODULE
from dilocoxd.models import StageSpan, build_stage
from dilocoxd.models.frozen import fill_frozen
from dilocoxd.models.stage import positions_of
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.parameters.flat import FlatParameters
from tests.harness.outer_worker.forks import Forks
from tests.integration.trainers import pipeline_run
from tests.integration.trainers.pipeline_run import Order, genesis, layout_of, model_config

pytestmark = pytest.mark.processes

LOSS_TOLERANCE = 1e-5
"""Microbatches are averaged in another order than one big batch: float32 rounding of a mean near 4.6."""

WEIGHT_TOLERANCE = 5e-5
"""AdamW divides by the root of the second moment: rounding of tiny gradients shows up as a part of lr = 3e-3."""

TENSOR_TOLERANCE = 2e-4
"""The same for sums over heads and units in parts: an element in ten thousand, whose gradient is nearly nothing."""

MUON_TOLERANCE = 3e-4
"""Newton-Schulz runs in bfloat16: the last bit of a sum may move an element of a step of lr = 3e-3 by a part of it."""

BFLOAT16_TOLERANCE = 2e-2
"""8 bits of mantissa in the forward pass, on a loss near 4.6 and as a part of a norm."""

BFLOAT16_MEAN_TOLERANCE = 4e-4
"""Of all weights, after three steps of lr = 3e-3: AdamW steps a weight whose gradient is next to nothing as far as any
other, whichever its sign. Twice what autocast alone does to the models here."""


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """One process forks all ranks of this file."""
    modules = (*FAMILY_MODULES, "dilocoxd.models.hf_cut", PIPELINE_MODULE, "torch.distributed.fsdp")
    with Forks(pipeline_run.__name__, *modules) as started:
        yield started


@dataclass
class Outcome:
    losses: list[float]
    norms: list[float]
    evaluated: float
    evaluated_odd: float
    """On fewer sequences than a stage may have ranks."""
    weights: torch.Tensor
    """Flat, in canonical order, as the ranks wrote them into one shared file."""


def run(forks: Forks, out: Path, **layout: Any) -> Outcome:
    out.mkdir()
    order = Order(str(out), **layout)
    numel = layout_of(order.kind).numel
    (out / "weights.bin").write_bytes(bytes(4 * numel))
    environment = {pipeline_run.ORDER: order.as_text(), "GLOO_SOCKET_IFNAME": "lo"}
    with (out / "log").open("wb") as log:
        processes = forks.ranks(pipeline_run.__name__, environment, order.ranks, output=log.fileno())
    assert not any([process.wait() for process in processes]), (out / "log").read_text()[-4000:]
    found: dict[str, Any] = json.loads((out / "found.json").read_text(encoding="utf-8"))
    # What the ranks did is subtract their parameters, each once, from zeros.
    weights = -torch.frombuffer(bytearray((out / "weights.bin").read_bytes()), dtype=torch.float32)
    return Outcome(**found, weights=weights)


@functools.cache
def plain(kind: str, document_end: int | None = None) -> Outcome:
    config, layout = model_config(kind), layout_of(kind)
    model = build_stage(config, StageSpan(0, 1, 0, config.num_layers), device=torch.device("cpu"))
    fill_frozen([model], pipeline_run.FrozenValues())
    named = dict(model.global_parameters())
    flat = FlatParameters(named.items(), layout)
    flat.replace(genesis(layout))
    options: OptimizerConfig = pipeline_run.OPTIMIZER
    matrices = [p for p in named.values() if p.dim() > 1]
    vectors = [p for p in named.values() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=options.lr, betas=(options.beta1, options.beta2), eps=options.eps, foreach=False,
    )  # fmt: skip
    losses, norms = [], []
    for step, tokens in enumerate(pipeline_run.batches()):
        loss = mean_loss(model, tokens, document_end)
        loss.backward()  # type: ignore[no-untyped-call]
        norms.append(float(torch.nn.utils.clip_grad_norm_(named.values(), pipeline_run.CLIP)))
        losses.append(float(loss.detach()))
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate(step, step)
        optimizer.step()
        optimizer.zero_grad()
    tokens = pipeline_run.batches()[0]
    with torch.no_grad():
        evaluated, evaluated_odd = (float(mean_loss(model, some, document_end)) for some in (tokens, tokens[:3]))
    weights = torch.zeros(layout.numel)
    flat.subtract_from(weights)
    return Outcome(losses, norms, evaluated, evaluated_odd, -weights)


def mean_loss(model: torch.nn.Module, tokens: torch.Tensor, document_end: int | None) -> torch.Tensor:
    ids = tokens[:, :-1]
    logits = model(ids) if document_end is None else model(ids, positions_of(ids, document_end))
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def assert_equal(found: Outcome, expected: Outcome, weights: float = WEIGHT_TOLERANCE) -> None:
    assert found.losses == pytest.approx(expected.losses, abs=LOSS_TOLERANCE)
    assert found.norms == pytest.approx(expected.norms, rel=1e-4)
    assert found.evaluated == pytest.approx(expected.evaluated, abs=1e-4)
    assert found.evaluated_odd == pytest.approx(expected.evaluated_odd, abs=1e-4)
    assert float((found.weights - expected.weights).abs().max()) <= weights


def test_two_stages_and_one_stage_compute_the_same(tmp_path: Path, forks: Forks) -> None:
    one = run(forks, tmp_path / "one")
    two = run(forks, tmp_path / "two", pipeline=2)
    assert_equal(two, plain("native"))
    # Same microbatches in the same order: the cut itself changes nothing; only the norm is summed in another order.
    assert two.losses == pytest.approx(one.losses, abs=1e-6)
    assert float((two.weights - one.weights).abs().max()) <= 1e-6


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("native", {}),
        ("native", {"pipeline": 2}),
        ("native", {"shard": 2, "is_checkpointed": True}),
        ("hf:gemma3_text", {"pipeline": 2}),
    ],
)
def test_documents_are_kept_apart_in_every_layout(
    tmp_path: Path, forks: Forks, kind: str, layout: dict[str, Any]
) -> None:
    end = 40  # a token in about every fourth sequence of random ones
    found = run(forks, tmp_path / "found", kind=kind, document_end=end, **layout)
    assert_equal(found, plain(kind, end))
    assert abs(found.evaluated - plain(kind).evaluated) > 1e-4, "it says nothing"


@pytest.mark.parametrize(
    ("pipeline", "schedule", "per_rank", "kind"),
    [
        (2, "gpipe", 1, "native"),
        (2, "interleaved1f1b", 2, "native"),
        (4, "1f1b", 1, "native"),
        (2, "interleavedzerobubble", 2, "hf:deepseek_v3"),
        (2, "zbvzerobubble", 2, "hf:gpt2"),
        (4, "zbvzerobubble", 2, "deep"),
        (4, "interleavedzerobubble", 2, "deep"),
        (2, "1f1b", 1, "llama"),
        (2, "1f1b", 1, "qwen3"),
        (2, "1f1b", 1, "hf:gemma3_text"),
        (2, "interleaved1f1b", 2, "hf:gpt2"),
        (2, "1f1b", 1, "hf:mixtral"),
        (2, "1f1b", 1, "hf:deepseek_v3"),
    ],
)
def test_every_supported_schedule_and_family_equals_the_plain_model(
    tmp_path: Path, forks: Forks, pipeline: int, schedule: str, per_rank: int, kind: str
) -> None:
    found = run(forks, tmp_path / "out", pipeline=pipeline, schedule=schedule, per_rank=per_rank, kind=kind)
    assert_equal(found, plain(kind))


@pytest.mark.parametrize(
    "layout",
    [
        {"shard": 4, "microbatches": 1},
        {"pipeline": 2, "replicate": 2, "microbatches": 2},
        {"tensor": 2, "shard": 2, "microbatches": 2},
    ],
)
def test_muon_steps_the_same_matrices_in_parts(tmp_path: Path, forks: Forks, layout: dict[str, Any]) -> None:
    one = run(forks, tmp_path / "one", optimizer="muon")
    parts = run(forks, tmp_path / "parts", optimizer="muon", **layout)
    assert parts.losses == pytest.approx(one.losses, abs=10 * LOSS_TOLERANCE)
    assert float((parts.weights - one.weights).abs().max()) <= MUON_TOLERANCE
    assert float((one.weights - plain("native").weights).abs().max()) > 10 * MUON_TOLERANCE


PP2_SHARD2 = {"pipeline": 2, "shard": 2, "microbatches": 2}
REPLICATE2_SHARD2 = {"replicate": 2, "shard": 2, "microbatches": 2}


@pytest.mark.parametrize(
    "layout",
    [
        {"shard": 2},
        {"shard": 4, "microbatches": 1},
        {"pipeline": 2, "layers": (3, 1)},
        {"replicate": 2, "microbatches": 2},
        PP2_SHARD2,
        {**PP2_SHARD2, "is_checkpointed": True},
        {"pipeline": 2, "replicate": 2, "microbatches": 2},
        {**PP2_SHARD2, "schedule": "interleaved1f1b", "per_rank": 2},
        {**PP2_SHARD2, "schedule": "zbvzerobubble", "per_rank": 2, "loss_chunk": 7, "kind": "hf:gemma3_text"},
        {**PP2_SHARD2, "schedule": "interleavedzerobubble", "per_rank": 2, "kind": "lora:llama tied"},
        REPLICATE2_SHARD2,
        {**REPLICATE2_SHARD2, "is_checkpointed": True},
        {"is_checkpointed": True},
        {**PP2_SHARD2, "kind": "hf:gemma3_text", "is_checkpointed": True},
        {**REPLICATE2_SHARD2, "kind": "hf:gemma3_text"},
        {"shard": 2, "kind": "hf:mixtral"},
        {"pipeline": 2, "shard": 2, "microbatches": 2, "kind": "llama"},
        {"shard": 2, "kind": "lora:llama tied"},
        {**PP2_SHARD2, "kind": "lora:gemma3_text", "is_checkpointed": True},
        {"pipeline": 2, "kind": "lora:llama tied", "is_checkpointed": True},
    ],
    ids=lambda layout: "-".join(f"{name}={value}" for name, value in layout.items() if name != "microbatches"),
)
def test_every_layout_equals_the_plain_model(tmp_path: Path, forks: Forks, layout: dict[str, Any]) -> None:
    assert_equal(run(forks, tmp_path / "out", **layout), plain(layout.get("kind", "native")))


TENSOR2 = {"tensor": 2, "microbatches": 2}
PP2_TENSOR2 = {**TENSOR2, "pipeline": 2}
ZBV = {"schedule": "zbvzerobubble", "per_rank": 2, "microbatches": 4}
MORE = pytest.mark.families
"""Beside others that say nearly as much: `make test-families`."""


@pytest.mark.parametrize(
    "layout",
    [
        TENSOR2,
        {**TENSOR2, "shard": 2, "kind": "odd"},
        {**TENSOR2, "pipeline": 2, "kind": "hf:llama tied", "is_checkpointed": True},
        {**TENSOR2, "pipeline": 2, "schedule": "gpipe", "kind": "qwen3", "is_sequence_cut": True},
        {**TENSOR2, "is_checkpointed": True, "kind": "hf:gemma3_text", "is_sequence_cut": True},
        {**TENSOR2, "pipeline": 2, "schedule": "interleaved1f1b", "per_rank": 2, "loss_chunk": 7, "document_end": 40},
        pytest.param({**TENSOR2, "pipeline": 2, "schedule": "gpipe", "kind": "qwen3"}, marks=MORE),
        pytest.param({**TENSOR2, "is_sequence_cut": True, "kind": "odd"}, marks=MORE),
        pytest.param({**TENSOR2, "shard": 2, "is_sequence_cut": True, "document_end": 40}, marks=MORE),
        pytest.param({**TENSOR2, "replicate": 2, "is_sequence_cut": True, "is_checkpointed": True}, marks=MORE),
        pytest.param({**PP2_TENSOR2, "is_sequence_cut": True, "kind": "hf:llama tied"}, marks=MORE),
        pytest.param({**PP2_TENSOR2, "is_sequence_cut": True, **ZBV}, marks=MORE),
        pytest.param({**TENSOR2, "is_sequence_cut": True, "kind": "hf:smollm3", "loss_chunk": 7}, marks=MORE),
        pytest.param(
            {**TENSOR2, "shard": 2, "is_sequence_cut": True, "is_compiled": True}, marks=(MORE, pytest.mark.compiled)
        ),
        pytest.param({**TENSOR2, "pipeline": 2}, marks=MORE),
        pytest.param({**TENSOR2, "shard": 2}, marks=MORE),
        pytest.param({**TENSOR2, "pipeline": 2, "schedule": "gpipe", "is_checkpointed": True}, marks=MORE),
        pytest.param({**TENSOR2, "replicate": 2, "is_checkpointed": True}, marks=MORE),
        pytest.param({**TENSOR2, "shard": 2, "is_checkpointed": True, "kind": "hf:gemma3_text"}, marks=MORE),
        pytest.param({**TENSOR2, "shard": 2, "kind": "hf:llama tied", "loss_chunk": 7}, marks=MORE),
        pytest.param({**TENSOR2, "shard": 2, "kind": "hf:qwen2"}, marks=MORE),
        pytest.param({**TENSOR2, "kind": "hf:qwen3 wide heads"}, marks=MORE),
        pytest.param({**TENSOR2, "pipeline": 2, "kind": "hf:smollm3"}, marks=MORE),
        pytest.param({**TENSOR2, "kind": "hf:mistral window"}, marks=MORE),
        pytest.param({**TENSOR2, "pipeline": 2, "kind": "llama"}, marks=MORE),
        pytest.param({**PP2_TENSOR2, **ZBV}, marks=MORE),
        pytest.param({**PP2_TENSOR2, **ZBV, "kind": "hf:gemma3_text"}, marks=MORE),
        pytest.param({**TENSOR2, "shard": 2, "is_compiled": True}, marks=(MORE, pytest.mark.compiled)),
    ],
    ids=lambda layout: "-".join(f"{name}={value}" for name, value in layout.items() if name != "microbatches"),
)
def test_tensor_parallel_layers_equal_the_plain_model(tmp_path: Path, forks: Forks, layout: dict[str, Any]) -> None:
    found = run(forks, tmp_path / "out", **layout)
    expected = plain(layout.get("kind", "native"), layout.get("document_end"))
    assert_equal(found, expected, weights=TENSOR_TOLERANCE)
    assert float(((found.weights - expected.weights).abs() > WEIGHT_TOLERANCE).float().mean()) < 1e-4


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"pipeline": 2, "document_end": 40},
        {**PP2_SHARD2, "schedule": "interleaved1f1b", "per_rank": 2},
        {**REPLICATE2_SHARD2, "kind": "hf:gemma3_text", "is_checkpointed": True},
        {"pipeline": 2, "kind": "qwen3"},
        {"pipeline": 2, "kind": "lora:llama tied"},
    ],
    ids=lambda layout: "-".join(f"{name}={value}" for name, value in layout.items() if name != "microbatches"),
)
def test_logits_of_a_few_positions_at_a_time_change_nothing(
    tmp_path: Path, forks: Forks, layout: dict[str, Any]
) -> None:
    chunk = 7  # divides neither a sequence nor a microbatch
    found = run(forks, tmp_path / "out", loss_chunk=chunk, **layout)
    assert_equal(found, plain(layout.get("kind", "native"), layout.get("document_end")))


@pytest.mark.compiled
@pytest.mark.parametrize(
    "layout",
    [
        {"is_checkpointed": True},
        {"document_end": 40},
        {**PP2_SHARD2, "is_checkpointed": True, "loss_chunk": 7},
        {"replicate": 2, "microbatches": 2},
        {"kind": "llama"},
        {"pipeline": 2, "kind": "hf:gpt2"},
        {"kind": "hf:gemma3_text"},
        {"kind": "hf:mixtral"},
        {"kind": "hf:deepseek_v3"},
        {"kind": "lora:llama tied"},
    ],
    ids=lambda layout: "-".join(f"{name}={value}" for name, value in layout.items() if name != "microbatches"),
)
def test_compiled_blocks_change_nothing(tmp_path: Path, forks: Forks, layout: dict[str, Any]) -> None:
    found = run(forks, tmp_path / "out", is_compiled=True, **layout)
    assert list((tmp_path.parent / "code").rglob("*.so")), "nothing was compiled"
    assert_equal(found, plain(layout.get("kind", "native"), layout.get("document_end")))


@pytest.mark.parametrize(
    "layout",
    [
        {"pipeline": 2},
        PP2_SHARD2,
        {**PP2_TENSOR2, "is_checkpointed": True, "is_sequence_cut": True},
        pytest.param({**PP2_TENSOR2, "is_checkpointed": True}, marks=MORE),
        pytest.param({**TENSOR2, "shard": 2}, marks=MORE),
    ],
    ids=["pipeline", "pipeline-and-shard", "pipeline-and-sequence", "pipeline-and-tensor", "tensor-and-shard"],
)
def test_bfloat16_stays_near_float32(tmp_path: Path, forks: Forks, layout: dict[str, Any]) -> None:
    found = run(forks, tmp_path / "out", dtype="bfloat16", **layout)
    assert found.losses == pytest.approx(plain("native").losses, abs=BFLOAT16_TOLERANCE)


@pytest.mark.parametrize(
    "layout",
    [
        {"pipeline": 2, "kind": "hf:gemma3_text"},
        {**PP2_SHARD2, "is_checkpointed": True, "loss_chunk": 7},
        {"shard": 2, "kind": "hf:gpt2"},
        pytest.param({**TENSOR2, "shard": 2}, marks=MORE),
    ],
    ids=["pipeline-tied", "pipeline-and-shard-checkpointed", "shard-layer-norm", "tensor-and-shard"],
)
def test_hidden_states_and_gathers_in_16_bits_stay_as_near(
    tmp_path: Path, forks: Forks, layout: dict[str, Any]
) -> None:
    expected = plain(layout.get("kind", "native"))
    found = run(forks, tmp_path / "out", dtype="bfloat16", is_narrow=True, **layout)
    assert found.losses == pytest.approx(expected.losses, abs=BFLOAT16_TOLERANCE)
    assert found.norms == pytest.approx(expected.norms, rel=BFLOAT16_TOLERANCE)
    assert found.evaluated == pytest.approx(expected.evaluated, abs=BFLOAT16_TOLERANCE)
    assert float((found.weights - expected.weights).abs().mean()) <= BFLOAT16_MEAN_TOLERANCE


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (PP2_SHARD2, {"shard": 4, "microbatches": 1}),
        (REPLICATE2_SHARD2, {"pipeline": 4}),
        ({"pipeline": 2}, PP2_SHARD2),
        ({**TENSOR2, "shard": 2}, {"shard": 4, "microbatches": 1}),
        (PP2_SHARD2, {**TENSOR2, "shard": 2}),
    ],
    ids=[
        *("pipeline-and-shard-to-shard", "replicas-to-pipeline", "pipeline-to-pipeline-and-shard"),
        *("tensor-and-shard-to-shard", "pipeline-and-shard-to-tensor-and-shard"),
    ],
)
def test_moments_saved_in_one_layout_continue_in_another(
    tmp_path: Path, forks: Forks, saved: dict[str, Any], loaded: dict[str, Any]
) -> None:
    common = {"checkpoints": str(tmp_path / "moments")}
    before = run(forks, tmp_path / "before", **saved, **common, last=2)
    torch.save(before.weights, tmp_path / "weights.pt")
    after = run(forks, tmp_path / "after", **loaded, **common, first=2, weights=str(tmp_path / "weights.pt"))
    expected = plain("native")
    assert [*before.losses, *after.losses] == pytest.approx(expected.losses, abs=LOSS_TOLERANCE)
    assert float((after.weights - expected.weights).abs().max()) <= WEIGHT_TOLERANCE
