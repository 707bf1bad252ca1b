"""How fast a site's trainers learn and what pipelining costs: `python -m tests.bench.trainer [--preset demo]`.

Prints one JSON object: CPU seconds of one process until the validation loss is 10% below the unigram entropy, and
CPU and wall milliseconds per inner step for one rank and two ranks at several numbers of microbatches. CPU seconds
mean something on a loaded machine; wall times only on a quiet one.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.config.site import ParallelSection, SiteConfig
from dilocoxd.models import init_parameter, init_std
from dilocoxd.trainer.data import prepare
from dilocoxd.trainer.data.held_out import BatchLosses
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.inner import InnerTraining
from dilocoxd.trainer.pipeline import Pipeline
from dilocoxd.trainer.settings import StageSettings, make_settings

EVALUATE_EVERY = 25
STEPS_MAX = 600
TIMED_STEPS = 30
TIMED = ("1x1", "1x2", "1x4", "2x2", "2x4")


def settings_for(manifest: Manifest, ranks: int, microbatches: int) -> StageSettings:
    site = SiteConfig(parallel=ParallelSection(threads_per_rank=1, stages=ranks, microbatches=microbatches))
    return make_settings(manifest, site, data_stream="bench")


def build(settings: StageSettings) -> InnerTraining:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return training_of(settings)


def training_of(settings: StageSettings) -> InnerTraining:
    """This rank's part of a new model; there is a process group."""
    pipeline = Pipeline(settings.model, settings.pipeline, device=torch.device("cpu"))
    for name, param in pipeline.parameters():
        std = init_std(name, settings.model.init_std, settings.model.num_layers)
        init_parameter(name, param.shape, 0, param.data.view(-1), std=std)
    return InnerTraining(pipeline, settings.optimizer)


def step(training: InnerTraining, order: BatchOrder) -> None:
    stepped(training, *order.batch(training.progress.position, training.pipeline.config.batch_sequences))


def stepped(training: InnerTraining, ids: torch.Tensor, targets: torch.Tensor) -> None:
    """An inner step on this batch."""
    loss, squares = training.gradients(ids, targets)
    sums = torch.tensor([loss, squares], dtype=torch.float64)
    dist.all_reduce(sums, group=training.pipeline.control)
    training.update(float(sums[1]))


def order_of(settings: StageSettings) -> tuple[BatchOrder, float]:
    prepared = prepare(settings.data, settings.tokenizer, settings.cache_dir, lambda _: None)
    order = BatchOrder(prepared, settings.model.seq_len, seed=settings.data_seed, peer=settings.data_stream)
    return order, prepared.unigram_entropy


def learn(settings: StageSettings, steps_max: int) -> dict[str, Any]:
    """Train one process until the target; evaluation is not counted."""
    training = build(settings)
    order, entropy = order_of(settings)
    validation = order.validation_batches(settings.validation_sequences, settings.pipeline.batch_sequences)
    spent, curve = 0.0, []
    while training.progress.global_step < steps_max:
        started = time.process_time()
        for _ in range(min(EVALUATE_EVERY, steps_max - training.progress.global_step)):
            step(training, order)
        spent += time.process_time() - started
        loss, _ = BatchLosses.of(training.pipeline.losses(validation), validation).mean
        curve.append((training.progress.global_step, round(spent, 2), round(loss, 3)))
        if curve[-1][2] < 0.9 * entropy:
            break
    parameters = sum(param.numel() for _, param in training.pipeline.parameters())
    return {"parameters": parameters, "unigram_entropy": round(entropy, 3), "steps_cpu_seconds_loss": curve}


def timed(settings: StageSettings, steps: int) -> dict[str, float]:
    training = build(settings)
    order, _ = order_of(settings)
    for _ in range(3):
        step(training, order)
    cpu, wall = time.process_time(), time.monotonic()
    for _ in range(steps):
        step(training, order)
    spent = torch.tensor([time.process_time() - cpu], dtype=torch.float64)
    elapsed = time.monotonic() - wall
    dist.all_reduce(spent, group=training.pipeline.control)
    return {"cpu_ms": 1e3 * float(spent) / steps, "wall_ms": 1e3 * elapsed / steps}


def worker(manifest: Manifest, options: argparse.Namespace) -> None:
    settings = settings_for(manifest, int(os.environ["WORLD_SIZE"]), options.microbatches)
    found = learn(settings, options.steps_max) if options.worker == "learn" else timed(settings, options.timed_steps)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    os._exit(0)


def launch(mode: str, options: argparse.Namespace, ranks: int, microbatches: int) -> dict[str, Any]:
    out = Path(f"/tmp/dilocoxd-bench-{os.getpid()}.json")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0",
         f"--nproc-per-node={ranks}", "-m", "tests.bench.trainer", "--preset", options.preset, "--worker", mode,
         "--steps-max", str(options.steps_max), "--timed-steps", str(options.timed_steps),
         "--microbatches", str(microbatches), "--out", str(out)],
        check=True, env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    out.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--worker", choices=["learn", "time"])
    parser.add_argument("--microbatches", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(os.devnull))
    parser.add_argument("--steps-max", type=int, default=STEPS_MAX, help="of learning")
    parser.add_argument("--timed-steps", type=int, default=TIMED_STEPS)
    parser.add_argument("--timed", nargs="+", default=TIMED, metavar="RxM", help="ranks x microbatches")
    options = parser.parse_args()
    manifest = manifest_from_tables(preset_tables(options.preset), source=options.preset)
    if options.worker:
        worker(manifest, options)
    order_of(settings_for(manifest, 1, 0))
    report: dict[str, Any] = {"preset": options.preset, "learn": launch("learn", options, 1, 0), "steps": {}}
    for ranks, microbatches in (map(int, pair.split("x")) for pair in options.timed):
        report["steps"][f"{ranks} ranks, {microbatches} microbatches"] = launch("time", options, ranks, microbatches)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
