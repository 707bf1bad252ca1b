"""What a site's trainers cost over a plain torch loop of the same layout: `python -m tests.bench.models.layouts`.

Both take turns in the same processes, block by block, with the same model, batches and optimizer. Prints one JSON
object: for each layout the CPU seconds of the plain loop as a share of ours, of all ranks together, median and range
over the blocks; 1 is no cost. Plain: one process, or torch's fully_shard around each block and the whole, nothing else.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from dilocoxd.models import ModelConfig, StageSpan, build_stage
from dilocoxd.trainer.channel import CommandChannel
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig

MODEL = ModelConfig("native", 512, 192, 4, 6, 2, 512, 64)
"""1.8M parameters."""
BATCH = 8
LAYOUTS = {"one process": {}, "shard = 2": {"shard": 2}}


def filled(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.02)
    return module


class PlainLoop:
    """The loop that anybody would write."""

    def __init__(self, num_ranks: int) -> None:
        whole = StageSpan(0, 1, 0, MODEL.num_layers)
        stage = build_stage(MODEL, whole, device=torch.device("cpu"))
        if num_ranks > 1:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (num_ranks,))
            for module in (*stage.blocks(), stage):
                fully_shard(module, mesh=mesh)
        self.model = filled(stage)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, ids: torch.Tensor, targets: torch.Tensor) -> None:
        share = ids[dist.get_rank() :: dist.get_world_size()], targets[dist.get_rank() :: dist.get_world_size()]
        loss = functional.cross_entropy(self.model(share[0]).flatten(0, 1), share[1].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss.item()


class OurLoop:
    """What a rank does between two commands of the daemon."""

    def __init__(self, layout: dict[str, int]) -> None:
        config = PipelineConfig(1, batch_sequences=BATCH, num_microbatches=1, **layout)  # type: ignore[arg-type]
        pipeline = Pipeline(MODEL, config, device=torch.device("cpu"))
        for module in pipeline.modules:
            filled(module)
        self.training = InnerTraining(pipeline, OptimizerConfig(lr=1e-4))
        self.channel = CommandChannel(None, pipeline.control)  # type: ignore[arg-type]

    def step(self, ids: torch.Tensor, targets: torch.Tensor) -> None:
        _, squares = self.channel.sum(self.training.gradients(ids, targets))
        self.training.update(squares)


def worker(name: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ours, plain = OurLoop(LAYOUTS[name]), PlainLoop(dist.get_world_size())
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, MODEL.vocab_size, (BATCH, MODEL.seq_len + 1), generator=generator)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    spent: dict[str, list[float]] = {"ours": [], "plain": []}
    for block in range(options.blocks + 1):
        for label, loop in (("ours", ours), ("plain", plain)) if block % 2 else (("plain", plain), ("ours", ours)):
            before = time.process_time()
            for _ in range(options.steps):
                loop.step(ids, targets)  # type: ignore[attr-defined]
            total = torch.tensor([time.process_time() - before], dtype=torch.float64)
            dist.all_reduce(total)
            if block:  # the first warms up
                spent[label].append(float(total))
    ratios = [plain_s / ours_s for plain_s, ours_s in zip(spent["plain"], spent["ours"], strict=True)]
    if dist.get_rank() == 0:
        found = {
            "plain_of_ours": round(statistics.median(ratios), 3),
            "range": [round(min(ratios), 3), round(max(ratios), 3)],
            "cpu_ms_per_step": round(1e3 * statistics.median(spent["ours"]) / options.steps, 1),
        }
        options.out.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)


def launch(name: str, options: argparse.Namespace) -> dict[str, object]:
    out = Path(f"/tmp/dilocoxd-layouts-{os.getpid()}.json")
    ranks = max(1, *LAYOUTS[name].values(), 1)
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0",
         f"--nproc-per-node={ranks}", "-m", "tests.bench.models.layouts", "--worker", name,
         "--steps", str(options.steps), "--blocks", str(options.blocks), "--out", str(out)],
        check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    found: dict[str, object] = json.loads(out.read_text(encoding="utf-8"))
    out.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", choices=list(LAYOUTS))
    parser.add_argument("--steps", type=int, default=10, help="of a block")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options)
    sys.stdout.write(json.dumps({name: launch(name, options) for name in LAYOUTS}, indent=1) + "\n")


if __name__ == "__main__":
    main()
