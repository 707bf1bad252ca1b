"""Ranks of the layout tests: a few inner steps, then losses and norms to a file, and parameters to a shared one.

Environment LAYOUT_RUN: an `Order` as JSON.
"""

import json
import mmap
import os
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dilocoxd.config.hugging_face import canonical_config, sizes
from dilocoxd.models import ModelConfig, init_parameter, init_std, param_specs
from dilocoxd.models.config import Adapter
from dilocoxd.models.frozen import fill_frozen
from dilocoxd.models.pretrained import Pretrained
from dilocoxd.trainer.channel import CommandChannel
from dilocoxd.trainer.data.held_out import BatchLosses
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.parallel.compiled import keep_code_in
from dilocoxd.trainer.parallel.local import is_cut_by_tensor, local, place_of
from dilocoxd.trainer.parameters.flat import FlatParameters
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig
from dilocoxd.trainer.rendezvous import join
from dilocoxd.wire.layout import Layout, ParamSpec, make_layout
from tests.unit.models.families import FAMILY_CONFIGS

ORDER = "LAYOUT_RUN"
STEPS = 3
TIMEOUT = timedelta(seconds=240)
BATCH = 8
CLIP = 0.5
SIZES = {"vocab_size": 96, "hidden_size": 48, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2,
         "intermediate_size": 66, "seq_len": 24}  # fmt: skip
VARIANTS = {"deep": {"num_layers": 8}, "odd": {"vocab_size": 97}}
"""odd: its vocabulary divides among no processes."""
OPTIMIZER = OptimizerConfig(lr=3e-3, warmup_steps=1, total_steps=10, clip_norm=CLIP)


@dataclass(frozen=True)
class Order:
    """One run of a site: its layout, which of the steps, and where from."""

    out: str
    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    kind: str = "native"
    schedule: str = "1f1b"
    per_rank: int = 1
    dtype: str = "float32"
    is_checkpointed: bool = False
    optimizer: str = "adamw"
    microbatches: int = 4
    document_end: int | None = None
    loss_chunk: int = 0
    is_narrow: bool = False
    is_compiled: bool = False
    layers: tuple[int, ...] = ()
    is_sequence_cut: bool = False
    first: int = 0
    last: int = STEPS
    checkpoints: str = ""
    """Where moments come from if `first` is not 0, and go to; empty: nowhere."""
    weights: str = ""
    """Parameters to begin with; empty: genesis."""

    @property
    def ranks(self) -> int:
        return self.pipeline * self.replicate * self.shard * self.tensor

    def as_text(self) -> str:
        return json.dumps(asdict(self))


def model_config(kind: str) -> ModelConfig:
    """The model called `kind`, or, for hf:NAME, the one of this name in `FAMILY_CONFIGS`; for lora:NAME its adapter.

    deep, odd: the native one with other sizes.
    """
    family, colon, name = kind.partition(":")
    if colon:
        table = FAMILY_CONFIGS[name]
        adapter = Adapter(4, 12.0) if family == "lora" else None
        return ModelConfig(adapter=adapter, kind="hf", seq_len=24, config=canonical_config(table), **sizes(table))  # type: ignore[arg-type]
    if kind in VARIANTS:
        return ModelConfig(kind="native", **(SIZES | VARIANTS[kind]))  # type: ignore[arg-type]
    return ModelConfig(kind=kind, **SIZES)  # type: ignore[arg-type]


def layout_of(kind: str) -> Layout:
    """Where the parameters lie in a flat vector."""
    return make_layout(param_specs(model_config(kind)), 4096)


def genesis(layout: Layout) -> torch.Tensor:
    """The flat vector that all runs begin with."""
    vector = torch.empty(layout.numel)
    for spec in layout.params:
        span = layout.span(spec.name)
        init_parameter(spec.name, spec.shape, 5, vector[span.start : span.stop], std=init_std(spec.name, 0.05, 4))
    return vector


class FrozenValues(Pretrained):
    """The model under an adapter, without files: values by name, in pieces that fit no row."""

    def __init__(self) -> None:
        pass

    def values(self, spec: ParamSpec) -> Iterator[Any]:
        whole = torch.empty(spec.numel)
        init_parameter(spec.name, spec.shape, 7, whole, std=0.05)
        yield from (piece.numpy() for piece in whole.split(100))


def batches() -> list[torch.Tensor]:
    """[BATCH, seq_len + 1] token ids per step."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 96, (BATCH, 25), generator=generator) for _ in range(STEPS)]


def shared_vector(path: Path, numel: int) -> torch.Tensor:
    """A file of float32 values that all ranks map."""
    with path.open("r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), numel * 4), dtype=torch.float32)


def mean_of(pipeline: Pipeline, of: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Loss over the targets that count."""
    return BatchLosses.of(pipeline.losses(of), of).mean[0]


def assert_copies_are_equal(pipeline: Pipeline) -> None:
    """What tensor parallel ranks all hold is the same on them to the bit: nothing makes it so but their arithmetic."""
    copied = [param for _, param in pipeline.parameters() if not is_cut_by_tensor(param)]
    assert pipeline.place.tensor == 1 or all(param.dim() < 2 for param in copied), "matrices are cut"
    whole = [local(param).flatten() for param in copied]
    place, found = pipeline.place, [None] * pipeline.config.world_size
    dist.all_gather_object(found, (place.rank // place.tensor, zlib.crc32(torch.cat(whole).numpy().tobytes())))
    assert len(set(found)) == len(found) // place.tensor, found


def main() -> int:
    run(Order(**json.loads(os.environ[ORDER])))
    return 0


def run(order: Order) -> None:
    torch.set_num_threads(1)
    keep_code_in(Path(order.out).parent.parent / "code")  # of all tests
    join("gloo", os.environ, timeout=TIMEOUT)
    config = PipelineConfig(
        order.pipeline, order.schedule, order.per_rank, BATCH, order.microbatches, order.dtype == "bfloat16",
        order.replicate, order.shard, order.tensor, order.is_checkpointed, order.loss_chunk, order.is_narrow,
        order.is_compiled, tuple(order.layers), order.is_sequence_cut,
    )  # fmt: skip
    pipeline = Pipeline(model_config(order.kind), config, device=torch.device("cpu"), document_end=order.document_end)
    fill_frozen(pipeline.modules, FrozenValues(), place_of)
    layout = layout_of(order.kind)
    flat = FlatParameters(pipeline.parameters(), layout, place=pipeline.place)
    flat.replace(torch.load(order.weights) if order.weights else genesis(layout))
    training = InnerTraining(pipeline, replace(OPTIMIZER, kind=order.optimizer))  # type: ignore[arg-type]
    nobody: Any = None
    channel = CommandChannel(nobody, pipeline.control)
    if order.first:
        assert training.restore(Path(order.checkpoints), channel)
        assert training.progress.optimizer_step == order.first
    losses, norms = [], []
    data = [(tokens[:, :-1], tokens[:, 1:]) for tokens in batches()]
    mean_of(pipeline, data[1:2])  # leaves nothing behind that training or the shared vector would see
    for ids, targets in data[order.first : order.last]:
        loss, squares = channel.sum(training.gradients(ids, targets))
        losses.append(loss)
        norms.append(squares**0.5)
        training.update(squares)
    assert_copies_are_equal(pipeline)
    evaluated = mean_of(pipeline, data[:1] * 2)
    odd = [(ids[:3], targets[:3]) for ids, targets in data[:1]]
    evaluated_odd = mean_of(pipeline, odd)
    out = Path(order.out)
    flat.subtract_from(shared_vector(out / "weights.bin", layout.numel))
    if order.checkpoints:
        training.save(Path(order.checkpoints), own_position=0)
        training.checkpoints.finish()
        assert not training.checkpoints.error, training.checkpoints.error
    channel.barrier()
    if dist.get_rank() == 0:
        found = {"losses": losses, "norms": norms, "evaluated": evaluated, "evaluated_odd": evaluated_odd}
        (out / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
