"""What compiled blocks gain and cost: `python -m tests.bench.models.compiled [--blocks 12]`.

One JSON object for each arithmetic: CPU seconds until the blocks are compiled (nothing kept from before), CPU ms of
forward and backward pass, compiled and not, in turns in one process, and the ratio with its range over the turns; below
1 is a gain. The model and batch of tests.bench.models.layouts, or a wider one. `--once`: one turn, whose figures say
nothing: the code is plain loops, for trying which vectors a compiler knows is a third of what the compiler does then.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch._inductor.config as generating

from dilocoxd.models import ModelConfig, StageModule, StageSpan, build_stage
from dilocoxd.trainer.data.targets import PartLoss
from dilocoxd.trainer.parallel.compiled import compile_blocks, keep_code_in
from tests.bench.models.layouts import BATCH, MODEL, filled

WIDE = ModelConfig("native", 512, 384, 4, 6, 2, 1024, 128)
"""6.7M parameters."""
MODELS = {"small": MODEL, "wide": WIDE}


def cpu_s() -> float:
    """Of this process and of the compilers that it has run."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def passes(stage: StageModule, tokens: torch.Tensor, dtype: str, count: int) -> float:
    """CPU seconds of so many passes forth and back."""
    loss_of, ids, targets = PartLoss(1), tokens[:, :-1], tokens[:, 1:].contiguous()
    began = cpu_s()
    for _ in range(count):
        loss_of.begin(targets)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = stage(ids)
        torch.autograd.backward(loss_of(logits, targets))
        stage.zero_grad()
    return cpu_s() - began


def measured(model: str, dtype: str, turns: int, count: int) -> dict[str, object]:
    """In this process, which has compiled nothing before."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = MODELS[model]
    tokens = torch.randint(0, config.vocab_size, (BATCH, config.seq_len + 1))
    span = StageSpan(0, 1, 0, config.num_layers)
    plain, compiled = (build_stage(config, span, device=torch.device("cpu")) for _ in range(2))
    for stage in (plain, compiled):
        filled(stage)
    passes(plain, tokens, dtype, 1)
    compile_blocks(compiled, torch.device("cpu"))
    compiling = passes(compiled, tokens, dtype, 1)
    spent: dict[str, list[float]] = {"plain": [], "compiled": []}
    for turn in range(turns):
        for name, stage in (("plain", plain), ("compiled", compiled))[:: 1 if turn % 2 else -1]:
            spent[name].append(passes(stage, tokens, dtype, count) / count)
    ratios = [ours / theirs for ours, theirs in zip(spent["compiled"], spent["plain"], strict=True)]
    return {
        "model": model,
        "dtype": dtype,
        "compiling_cpu_s": round(compiling, 1),
        "cpu_ms": {name: round(1e3 * statistics.median(each), 1) for name, each in spent.items()},
        "compiled_of_plain": round(statistics.median(ratios), 3),
        "range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.models.compiled", description=__doc__)
    parser.add_argument("--blocks", type=int, default=12, help="turns of each")
    parser.add_argument("--steps", type=int, default=5, help="of a turn")
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--here", nargs=2, metavar=("MODEL", "DTYPE"), help="measure this in this process")
    arguments = parser.parse_args()
    turns, count = (1, 1) if arguments.once else (arguments.blocks, arguments.steps)
    if arguments.here:
        if arguments.once:
            generating.cpp.vec_isa_ok = False
        with tempfile.TemporaryDirectory() as folder:
            keep_code_in(Path(folder))
            print(json.dumps(measured(*arguments.here, turns, count)), flush=True)
        return
    for model in ["small"] if arguments.once else MODELS:
        for dtype in ("float32", "bfloat16"):
            here = ["--here", model, dtype, "--blocks", str(turns), "--steps", str(count)]
            subprocess.run([sys.executable, "-m", "tests.bench.models.compiled", *here], check=True)


if __name__ == "__main__":
    main()
