"""What logits of a few positions at a time save and cost: `python -m tests.bench.models.logits [--chunks 0,1024,256]`.

One JSON object per chunk: how much memory one process needs for training steps of a small model with a large
vocabulary, above what it had before the first, and CPU seconds of a step. Each runs in a process of its own, one after
the other. `--once`: one step, small vocabulary, for CI.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from dilocoxd.models import ModelConfig, StageSpan, build_stage
from dilocoxd.trainer.data.targets import PartLoss

SEQUENCES, LENGTH, STEPS = 2, 1024, 3


def measured(chunk: int, vocab_size: int, steps: int) -> dict[str, float]:
    """In this process, which has done nothing before."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = ModelConfig("native", vocab_size, 128, 2, 4, 2, 256, LENGTH)
    stage = build_stage(config, StageSpan(0, 1, 0, config.num_layers), device=torch.device("cpu"))
    stage.loss_chunk_tokens = chunk
    for parameter in stage.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
        parameter.grad = torch.zeros_like(parameter)
    ids, targets = (torch.randint(0, vocab_size, (SEQUENCES, LENGTH)) for _ in range(2))
    loss_of, spent = PartLoss(1), []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    loss = torch.zeros(())
    for _ in range(steps):
        began = time.process_time()
        loss_of.begin(targets)
        loss = loss_of(stage(ids, targets_BT=targets) if chunk else stage(ids), targets)
        torch.autograd.backward(loss)
        spent.append(time.process_time() - began)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found = {"chunk": chunk, "memory_mib": round(more / 1024), "cpu_s": round(min(spent), 2)}
    return found | {"loss": float(loss.detach())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.models.logits", description=__doc__)
    parser.add_argument("--chunks", default="0,1024,256", help="positions that have logits at a time; 0: all 2048")
    parser.add_argument("--vocab-size", type=int, default=131_072)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--here", action="store_true", help="measure the first chunk in this process")
    arguments = parser.parse_args()
    chunks = [int(chunk) for chunk in arguments.chunks.split(",")]
    vocab_size, steps = (2048, 1) if arguments.once else (arguments.vocab_size, STEPS)
    if arguments.here:
        print(json.dumps(measured(chunks[0], vocab_size, steps)), flush=True)
        return
    for chunk in chunks:
        options = ["--chunks", str(chunk), "--vocab-size", str(vocab_size), *(["--once"] if arguments.once else [])]
        subprocess.run([sys.executable, "-m", "tests.bench.models.logits", "--here", *options], check=True)


if __name__ == "__main__":
    main()
