"""What a site's trainers cost over a plain torch loop of the same layout: `python -m tests.bench.models.layouts`.

Both take turns in the same processes, block by block, with the same model, batches and optimizer. Prints one JSON
object: for each layout the CPU seconds of the plain loop as a share of ours, of all ranks together, median and range
over the blocks; 1 is no cost. Plain: one process, torch's fully_shard around each block and the whole, or torch's
PipelineStage and 1F1B schedule in each of two, nothing else.

`schedules`: the pipeline of two under each schedule, in turns in the same processes too; time and CPU time of a step as
a share of what 1f1b took in the same block, and the part of a step in which the two wait for each other. Time says
something only where nobody else wants the two cores, or with `--asleep-ms 20`: then each block takes so long for each
of its three passes without a processor, as on a device of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from dilocoxd.models import ModelConfig, StageSpan, build_stage, cut_stages
from dilocoxd.trainer.channel import CommandChannel
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.optimizer import OptimizerConfig
from dilocoxd.trainer.pipeline import Pipeline, PipelineConfig

MODEL = ModelConfig("native", 512, 192, 4, 6, 2, 512, 64)
"""1.8M parameters."""
BATCH = 8
MICROBATCHES = 4
"""Of a pipeline."""
LAYOUTS = {
    "one process": PipelineConfig(1, batch_sequences=BATCH, num_microbatches=1),
    "shard = 2": PipelineConfig(1, batch_sequences=BATCH, num_microbatches=1, shard=2),
    "pipeline = 2": PipelineConfig(2, batch_sequences=BATCH, num_microbatches=MICROBATCHES),
}
SCHEDULES = {
    name: PipelineConfig(2, schedule=name, stages_per_rank=slices, batch_sequences=BATCH, num_microbatches=MICROBATCHES)
    for name, slices in (("1f1b", 1), ("interleaved1f1b", 2), ("interleavedzerobubble", 2), ("zbvzerobubble", 2))
}
"""Each slice of two has one of the four layers."""


class Loop(Protocol):
    """Of one rank."""

    def step(self, ids: torch.Tensor, targets: torch.Tensor) -> None: ...


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
        loss = _mean_loss(self.model(share[0]), share[1])
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss.item()


class PlainPipeline:
    """The same with stages: what torch's pipelining asks for, and the norm over all stages."""

    def __init__(self, num_ranks: int) -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        rank = dist.get_rank()
        self.model = filled(build_stage(MODEL, cut_stages(MODEL, num_ranks)[rank], device=torch.device("cpu")))
        self.is_first, self.is_last = rank == 0, rank == num_ranks - 1
        stage = PipelineStage(self.model, rank, num_ranks, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=_mean_loss)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, ids: torch.Tensor, targets: torch.Tensor) -> None:
        losses: list[torch.Tensor] = []
        inputs = (ids,) if self.is_first else ()
        more: dict[str, Any] = {"target": targets, "losses": losses} if self.is_last else {}
        self.schedule.step(*inputs, return_outputs=False, **more)
        norm = nn.utils.get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None])
        squares = norm.square()
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(self.model.parameters(), 1.0, squares.sqrt())
        self.optimizer.step()
        self.optimizer.zero_grad()
        if losses:
            torch.stack(losses).mean().item()


def _mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class OurLoop:
    """What a rank does between two commands of the daemon."""

    def __init__(self, config: PipelineConfig) -> None:
        pipeline = Pipeline(MODEL, config, device=torch.device("cpu"))
        for module in pipeline.modules:
            filled(module)
        self.training = InnerTraining(pipeline, OptimizerConfig(lr=1e-4))
        self.channel = CommandChannel(None, pipeline.control)  # type: ignore[arg-type]
        self.bubble = 0.0
        """Of the newest step."""

    def step(self, ids: torch.Tensor, targets: torch.Tensor) -> None:
        shares = self.training.gradients(ids, targets)
        _, squares, computed_s = self.channel.sum((*shares, self.training.computed_s))
        self.bubble = self.training.pipeline.clock.waited(computed_s / dist.get_world_size())
        self.training.update(squares)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and targets."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, MODEL.vocab_size, (BATCH, MODEL.seq_len + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def compared(name: str, options: argparse.Namespace) -> dict[str, object]:
    """What stands in the row of this layout."""
    num_ranks, is_pipeline = dist.get_world_size(), LAYOUTS[name].num_ranks > 1
    ours: Loop = OurLoop(LAYOUTS[name])
    plain: Loop = PlainPipeline(num_ranks) if is_pipeline else PlainLoop(num_ranks)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, MODEL.vocab_size, (BATCH, MODEL.seq_len + 1), generator=generator)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    spent: dict[str, list[float]] = {"ours": [], "plain": []}
    for block in range(options.blocks + 1):
        for label, loop in (("ours", ours), ("plain", plain)) if block % 2 else (("plain", plain), ("ours", ours)):
            before = time.process_time()
            for _ in range(options.steps):
                loop.step(ids, targets)
            total = torch.tensor([time.process_time() - before], dtype=torch.float64)
            dist.all_reduce(total)
            if block:  # the first warms up
                spent[label].append(float(total))
    ratios = [plain_s / ours_s for plain_s, ours_s in zip(spent["plain"], spent["ours"], strict=True)]
    return {
        "plain_of_ours": round(statistics.median(ratios), 3),
        "range": [round(min(ratios), 3), round(max(ratios), 3)],
        "cpu_ms_per_step": round(1e3 * statistics.median(spent["ours"]) / options.steps, 1),
    }


def fall_asleep(seconds: float) -> None:
    """Stages made from here on are those of devices of their own: each block takes so long for its forward pass, for
    the gradient of its input and for those of its weights, besides what the processor computes."""
    from dilocoxd.trainer.parallel import timed_stage

    class Asleep(timed_stage.TimedStage):
        def _sleep(self, times: int) -> None:
            with self._clock.computing():
                time.sleep(times * seconds * len(list(self.submod.blocks())))  # type: ignore[operator]

        def forward_one_chunk(self, *args: Any, **more: Any) -> Any:
            self._sleep(1)
            return super().forward_one_chunk(*args, **more)

        def backward_one_chunk(self, *args: Any, full_backward: bool = True, **more: Any) -> Any:
            # Nobody wants the gradient of the first input: torch leaves that stage all its work for later.
            self._sleep(2 if full_backward else 0 if self.is_first else 1)
            return super().backward_one_chunk(*args, full_backward=full_backward, **more)

        def backward_weight_one_chunk(self, *args: Any, **more: Any) -> Any:
            self._sleep(2 if self.is_first else 1)
            return super().backward_weight_one_chunk(*args, **more)

    timed_stage.TimedStage = Asleep  # type: ignore[misc]


def schedules(options: argparse.Namespace) -> dict[str, object]:
    """Rows of all schedules of two processes."""
    if options.asleep_ms:
        fall_asleep(options.asleep_ms / 1e3)
    loops = {name: OurLoop(config) for name, config in SCHEDULES.items()}
    ids, targets = batch()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in loops}
    for block in range(options.blocks + 1):
        turn = block % len(loops)
        for name in [*loops][turn:] + [*loops][:turn]:
            loop, bubbles = loops[name], []
            dist.barrier()
            began, before = time.perf_counter(), time.process_time()
            for _ in range(options.steps):
                loop.step(ids, targets)
                bubbles.append(loop.bubble)
            spent = torch.tensor([time.process_time() - before], dtype=torch.float64)
            wall_s = time.perf_counter() - began
            dist.all_reduce(spent)
            if block:  # the first warms up
                found[name].append((wall_s, float(spent), statistics.median(bubbles)))
    return {name: _of_first(found, name, options.steps) for name in found}


def _of_first(
    found: Mapping[str, Sequence[tuple[float, float, float]]], name: str, steps: int
) -> dict[str, float | list[float]]:
    walls, cpus = (
        [ours[which] / first[which] for ours, first in zip(found[name], found["1f1b"], strict=True)] for which in (0, 1)
    )
    return {
        "time_of_1f1b": round(statistics.median(walls), 3),
        "range": [round(min(walls), 3), round(max(walls), 3)],
        "cpu_of_1f1b": round(statistics.median(cpus), 3),
        "ms_per_step": round(1e3 * statistics.median(wall for wall, _, _ in found[name]) / steps, 1),
        "bubble": round(statistics.median(bubble for _, _, bubble in found[name]), 3),
    }


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, object] = {name: compared(name, options) for name in options.worker}
    if dist.get_world_size() > 1:
        found["schedules"] = schedules(options)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)


def launch(num_ranks: int, options: argparse.Namespace) -> dict[str, object]:
    """Rows of all layouts of so many ranks, one after the other in the same processes: they import torch once."""
    names = [name for name, config in LAYOUTS.items() if config.world_size == num_ranks]
    out = Path(f"/tmp/dilocoxd-layouts-{os.getpid()}.json")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0",
         f"--nproc-per-node={num_ranks}", "-m", "tests.bench.models.layouts", "--worker", *names,
         "--steps", str(options.steps), "--blocks", str(options.blocks), "--out", str(out),
         "--asleep-ms", str(options.asleep_ms)],
        check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    found: dict[str, object] = json.loads(out.read_text(encoding="utf-8"))
    out.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker", choices=list(LAYOUTS), nargs="*")
    parser.add_argument("--steps", type=int, default=5, help="of a block: turns so short that noise meets both")
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--asleep-ms", type=float, default=0.0, help="of each pass of a block, for schedules")
    parser.add_argument("--out", type=Path, default=Path(os.devnull))
    options = parser.parse_args()
    if options.worker is not None:
        worker(options)
    sys.stdout.write(json.dumps(launch(1, options) | launch(2, options), indent=1) + "\n")


if __name__ == "__main__":
    main()
