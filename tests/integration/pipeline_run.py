"""Run by torchrun in the pipeline tests: a few AdamW steps from genesis, then losses, norms and parameters to a file.

torchrun ... pipeline_run.py OUT KIND SCHEDULE STAGES_PER_RANK DTYPE
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from dilocoxd.models import ModelConfig, init_parameter, init_std
from dilocoxd.trainer.optimizer import (
    OptimizerConfig,
    clip_factor,
    gradient_sum_of_squares,
    make_adamw,
    scale_gradients,
)
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig

STEPS = 3
BATCH = 8
CLIP = 0.5
SIZES = {"vocab_size": 96, "hidden_size": 48, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2,
         "intermediate_size": 64, "seq_len": 24}  # fmt: skip
OPTIMIZER = OptimizerConfig(lr=3e-3, warmup_steps=1, total_steps=10, clip_norm=CLIP)


def model_config(kind: str) -> ModelConfig:
    return ModelConfig(kind=kind, **SIZES)  # type: ignore[arg-type]


def batches() -> list[torch.Tensor]:
    """[BATCH, seq_len + 1] token ids per step."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 96, (BATCH, 25), generator=generator) for _ in range(STEPS)]


def main(out: Path, kind: str, schedule: str, stages_per_rank: int, dtype: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config = PipelineConfig(dist.get_world_size(), schedule, stages_per_rank, BATCH, 4, dtype == "bfloat16")
    pipeline = Pipeline(model_config(kind), config, device=torch.device("cpu"))
    named = dict(pipeline.parameters())
    for name, param in named.items():
        init_parameter(name, param.shape, 5, param.data.view(-1), std=init_std(name, 0.05, 4))
    params = list(named.values())
    optimizer = make_adamw(params, OPTIMIZER)
    losses, norms = [], []
    for step, tokens in enumerate(batches()):
        loss = pipeline.train_step(tokens[:, :-1], tokens[:, 1:])
        sums = torch.tensor([gradient_sum_of_squares(params), loss], dtype=torch.float64)
        dist.all_reduce(sums, group=pipeline.control)
        norms.append(float(sums[0]) ** 0.5)
        losses.append(float(sums[1]))
        scale_gradients(params, clip_factor(float(sums[0]), CLIP))
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER.learning_rate(step, step)
        optimizer.step()
        optimizer.zero_grad()
    last = batches()[0]
    evaluated = pipeline.evaluate([(last[:, :-1], last[:, 1:])] * 2)
    torch.save({name: param.detach() for name, param in named.items()}, out / f"rank{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        found = {"losses": losses, "norms": norms, "evaluated": evaluated}
        (out / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
    os._exit(0)
