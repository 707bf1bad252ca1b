"""Values of a run's description that no room can work with: refused where they are used, and taken as it is said there.

`dilocoxd check-config` refuses most of them before; these are what a library or another version's run.toml meets.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
import torch

from dilocoxd.compress.fragments import Fragments
from dilocoxd.compress.lowrank import LowRank
from dilocoxd.compress.mask import RandomMask
from dilocoxd.compress.registry import codec_from_name
from dilocoxd.models.config import ModelConfig
from dilocoxd.models.cut import cut_stages
from dilocoxd.outer.on_gpu import OnGpu, device_of_part
from dilocoxd.outer.optimizers import outer_from_name
from dilocoxd.outer.schedule import AdaptiveLimits
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.planner.processors import parse_gpus
from dilocoxd.planner.quantities import parse_rates, parse_time
from dilocoxd.trainer.main import required_device
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.pipeline import PipelineConfig
from dilocoxd.wire.layout import ParamSpec, make_layout
from tests.harness.outer_worker.daemon_end import tiny_manifest
from tests.remedies.refused.rooms.told import Value

LAYOUT: Final = make_layout([ParamSpec("weight", (64, 64))], 4096)
FP32: Final = codec_from_name("fp32")
MODEL: Final = ModelConfig("native", 64, 32, 2, 2, 1, 48, 16)
low_rank: Final = partial(LowRank, LAYOUT, dense=FP32)
outer: Final = partial(outer_from_name, "nesterov", 0.5)
model: Final = partial(replace, MODEL)
pipeline: Final = partial(PipelineConfig, batch_sequences=8, num_microbatches=4)
zero_bubble: Final = partial(pipeline, 2, "interleavedzerobubble", 2, shard=2)
Composed: Final = Value
"""Of a sentence that is no text of the place where it is raised: not among those that test_followed.py counts."""


def param(name: str, *shape: int) -> ParamSpec:
    return ParamSpec(name, shape)


def layout(*params: ParamSpec, most: int = 4096) -> Any:
    return make_layout(params, most)


def plan_of(layers: int, segments: int) -> Any:
    """Of 7B parameters for each 8 layers; nothing of that size is allocated."""
    sizes = {"hidden_size": 8192, "num_layers": layers, "num_heads": 64, "num_kv_heads": 8, "vocab_size": 32000}
    return make_plan(
        tiny_manifest(model=sizes | {"intermediate_size": 28672}, strategy={"segment_elements_max": segments})
    )


def encoded_there(codec: str) -> Any:
    return OnGpu(codec_from_name(codec), torch.device("cpu"))


def without_gpu(choice: Any) -> Any:
    """On a machine that has none, whatever this one has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return device_of_part(choice, 0)


def without_cuda(name: str) -> torch.device:
    """By a torch that was built without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cuda, "is_built", lambda: False)
        return required_device(name)


def with_one_gpu(name: str) -> torch.device:
    """On a machine that has one, whatever this one has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cuda, "is_built", lambda: True)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        return required_device(name)


def rtt(text: str) -> float:
    return parse_time("--rtt", text, 0, 10)


def optimizer(**fields: float) -> Any:
    return OptimizerConfig(**({"lr": 1e-3} | fields))  # type: ignore[arg-type]


VALUES: Final = (
    Value("compress/fragments.py", "use 1 to 1024", partial(Fragments, LAYOUT, FP32), {"num_fragments": 0},
          {"num_fragments": 1}),
    Value("compress/lowrank.py", "use at least 1", low_rank, {"lowrank_r": 0}, {"lowrank_r": 1}),
    Value("compress/mask.py", "use 1 (all) to 4096", partial(RandomMask, LAYOUT, FP32), {"keep_one_in": 5000},
          {"keep_one_in": 4096}),
    Value("compress/registry.py", "is unknown; use one of", codec_from_name, {"name": "int5"}, {"name": "int4"}),
    Value("compress/registry.py", "remove what it does not know", codec_from_name, {"name": "fp32", "block": 64},
          {"name": "fp32"}),
    Value("compress/registry.py", "use a power of two", codec_from_name, {"name": "int4", "block": 100},
          {"name": "int4", "block": 128}),
    Value("compress/registry.py", "use nearest or stochastic", codec_from_name, {"name": "int8", "rounding": "up"},
          {"name": "int8", "rounding": "nearest"}),
    Value("compress/registry.py", "scale is VALUE; use one of", codec_from_name, {"name": "int8", "scale": "fp64"},
          {"name": "int8", "scale": "bf16"}),
    Value("compress/registry.py", "use an even number", codec_from_name, {"name": "topk", "k": 3},
          {"name": "topk", "k": 4}),
    Value("compress/registry.py", "use 2bit or fp32", codec_from_name, {"name": "topk", "values": "1bit"},
          {"name": "topk", "values": "2bit"}),
    Value("outer/optimizers.py", "at most 10", partial(outer_from_name, "nesterov"), {"lr": 11}, {"lr": 10}),
    Value("outer/optimizers.py", "0 to below 1", outer, {"momentum": 1}, {"momentum": 0.9}),
    Value("outer/optimizers.py", "use nesterov or heavy_ball, or momentum 0", outer_from_name,
          {"name": "sgd", "lr": 1.0, "momentum": 0.9}, {"name": "heavy_ball", "lr": 1.0, "momentum": 0.9}),
    Value("outer/optimizers.py", "use 0 <= beta2 < 1", partial(outer_from_name, "adam", 1.0), {"beta2": 1.0},
          {"beta2": 0.9}),
    Value("outer/optimizers.py", "use sgd, heavy_ball", outer_from_name, {"name": "lion", "lr": 1.0},
          {"name": "sgd", "lr": 1.0}),
    Value("outer/schedule.py", "use a window of at least 1", AdaptiveLimits,
          {"lowrank_r": 4, "inner_steps": 8, "lowrank_r_min": 5},
          {"lowrank_r": 4, "inner_steps": 8, "lowrank_r_min": 4}),
    Value("outer/schedule.py", "use 1 <= inner_steps_min", AdaptiveLimits,
          {"lowrank_r": 4, "inner_steps": 8, "inner_steps_max": 7},
          {"lowrank_r": 4, "inner_steps": 8, "inner_steps_max": 8}),
    Value("planner/processors.py", "write NUMBERxNAME", parse_gpus, {"text": "A100"}, {"text": "8xA100"}),
    Value("planner/quantities.py", "write bits per second", parse_rates, {"text": "fast"}, {"text": "20M/1G"}),
    Value("planner/quantities.py", "with its unit: megabits per second as 100M", parse_rates, {"text": "100"},
          {"text": "100M"}),
    Value("planner/quantities.py", "write a number with ms or s", rtt, {"text": "80"}, {"text": "80ms"}),
    Value("planner/quantities.py", "is out of range; give", rtt, {"text": "80s"}, {"text": "10s"}),
    Value("wire/layout.py", "use a positive multiple", partial(layout, param("a", 2)), {"most": 5000},
          {"most": 8192}),
    Value("wire/layout.py", "check the model section of the manifest", make_layout,
          {"params": [], "segment_elements_max": 4096}, {"params": [param("a", 2)], "segment_elements_max": 4096}),
    Value("wire/layout.py", "appears twice; give each a name of its own", make_layout,
          {"params": [param("a", 2), param("a", 2)], "segment_elements_max": 4096},
          {"params": [param("a", 2), param("b", 2)], "segment_elements_max": 4096}),
    Value("wire/layout.py", "every extent must be at least 1", make_layout,
          {"params": [param("a", 0)], "segment_elements_max": 4096},
          {"params": [param("a", 1)], "segment_elements_max": 4096}),
    Value("wire/layout.py", "use the manifest's model", LAYOUT.spans, {"names": ["bias"]}, {"names": ["weight"]}),
    Value("wire/layout.py", "give each name once", LAYOUT.spans, {"names": ["weight", "weight"]},
          {"names": ["weight"]}),
    Value("outerworker/plan.py", "strategy.segment_elements_max", plan_of, {"layers": 8, "segments": 1 << 16},
          {"layers": 8, "segments": 1 << 18}),
    Value("outerworker/plan.py", "train a smaller model", plan_of, {"layers": 1000, "segments": 1 << 26},
          {"layers": 500, "segments": 1 << 26}),
    Value("models/config.py", "is not supported: choose one of", model, {"kind": "nativ"}, {"kind": "native"}),
    Value("models/config.py", "it must be at least 1", model, {"num_layers": 0}, {"num_layers": 1}),
    Value("models/config.py", "is not a multiple of model.num_heads VALUE: change one of them", model,
          {"hidden_size": 33}, {"hidden_size": 36}),
    Value("models/config.py", "is not a multiple of model.num_kv_heads", model, {"num_heads": 4, "num_kv_heads": 3},
          {"num_heads": 4, "num_kv_heads": 2}),
    Value("models/config.py", "need an even head size; change one of them", model, {"hidden_size": 30, "num_heads": 2},
          {"hidden_size": 30, "num_heads": 3, "num_kv_heads": 1}),
    Value("models/config.py", "means nothing to the VALUE model: remove it", model, {"extra": {"a": 1}}, {"extra": {}}),
    Value("models/cut.py", "set parallel.layers_per_stage to one number for each stage", partial(cut_stages, MODEL, 2),
          {"layers": (2, 1)}, {"layers": (1, 1)}),
    Value("models/cut.py", "use fewer stages", partial(cut_stages, MODEL), {"num_stages": 3}, {"num_stages": 2}),
    Value("outer/on_gpu.py", "set workers.encode_device to 'cpu'", encoded_there, {"codec": "topk"}, {"codec": "int4"}),
    Value("outer/on_gpu.py", "set it to 'cpu' in site.toml", without_gpu, {"choice": "cuda"}, {"choice": "cpu"}),
    Value("trainer/main.py", "install a CUDA build of torch, or", without_cuda, {"name": "cuda:0"}, {"name": "cpu"}),
    Value("trainer/main.py", "use fewer trainer processes", with_one_gpu, {"name": "cuda:1"}, {"name": "cuda:0"}),
    Value("trainer/optimizer.py", "must be above 0", optimizer, {"lr": 0}, {"lr": 1e-9}),
    Value("trainer/optimizer.py", "must lie between 0 and 1", optimizer, {"min_lr_ratio": 2}, {"min_lr_ratio": 1}),
    Value("trainer/optimizer.py", "at least 0 and total_steps VALUE at least 1", optimizer, {"total_steps": 0},
          {"total_steps": 1}),
    Value("trainer/optimizer.py", "must be at least 0 (0 does not clip)", optimizer, {"clip_norm": -1},
          {"clip_norm": 0}),
    Value("trainer/pipeline.py", "it must be at least 1", pipeline, {"num_ranks": 0}, {"num_ranks": 1}),
    Value("trainer/pipeline.py", "use at least", pipeline, {"num_ranks": 5}, {"num_ranks": 4}),
    Value("trainer/pipeline.py", "at each of VALUE ranks of a stage: change one of them", pipeline,
          {"num_ranks": 2, "shard": 3}, {"num_ranks": 2, "shard": 2}),
)  # fmt: skip


SCHEDULES: Final = (
    Composed("trainer/pipeline.py", "is not supported: choose one of", pipeline, {"num_ranks": 2, "schedule": "2f2b"},
             {"num_ranks": 2, "schedule": "gpipe"}),
    Composed("trainer/pipeline.py", "raise them (parallel.pipeline, parallel.stages_per_process) or use 1f1b", pipeline,
             {"num_ranks": 2, "schedule": "interleaved1f1b"}, {"num_ranks": 2, "schedule": "1f1b"}),
    Composed("trainer/pipeline.py", "multiple of the pipeline ranks (VALUE): change one of them", pipeline,
             {"num_ranks": 3, "schedule": "interleaved1f1b", "stages_per_rank": 2},
             {"num_ranks": 2, "schedule": "interleaved1f1b", "stages_per_rank": 2}),
    Composed("trainer/pipeline.py", "change parallel.pipeline or parallel.stages_per_process, or use 1f1b", pipeline,
             {"num_ranks": 2, "schedule": "zbvzerobubble"},
             {"num_ranks": 2, "schedule": "zbvzerobubble", "stages_per_rank": 2}),
    Composed("trainer/pipeline.py", "use interleaved1f1b", pipeline, {"num_ranks": 2, "stages_per_rank": 2},
             {"num_ranks": 2, "stages_per_rank": 2, "schedule": "interleaved1f1b"}),
    Composed("trainer/pipeline.py", "set it to 'none', or use 1f1b", zero_bubble, {"is_checkpointed": True},
             {"is_checkpointed": False}),
    Composed("trainer/pipeline.py", "set parallel.compile to false, or use 1f1b", zero_bubble, {"is_compiled": True},
             {"is_compiled": False}),
    Composed("trainer/pipeline.py", "set it to 'float32', or use 1f1b", zero_bubble, {"is_narrow": True},
             {"is_narrow": False}),
)  # fmt: skip
"""Their sentences are made below the trainers (config/sections/schedules.py), for the configuration says them too."""


@pytest.mark.parametrize("value", VALUES + SCHEDULES, ids=lambda one: f"{one.file}-{one.words}")
def test_a_value_as_the_refusal_says_is_taken(value: Value) -> None:
    value.follow()
