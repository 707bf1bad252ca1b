"""`python -m tests.bench.models.families [LABEL...]`: families through two real sites and out again, one by one.

Start from published weights, a pipeline of two stages and a site of one process, three entries with both, export: the
bits of both exports and the logits of transformers and of our own model are compared. One line for each family, and a
table for docs/benchmarks.md at the end. Minutes for each: tests/integration/models/test_families.py runs two.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.harness.published.directory import VOCAB
from tests.harness.running.family_run import ids, same_files, train
from tests.unit.models.families import FAMILY_CONFIGS


def tried(label: str) -> tuple[bool, bool, float, float]:
    """(same files from both sites, same logits as transformers, largest change of a logit by training, seconds)."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dilocoxd-family-") as folder:
        run = train(Path(folder), FAMILY_CONFIGS[label] | {"vocab_size": VOCAB})
        out, other = run.export(run.first), run.export(run.second)
        library = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
        with torch.no_grad():
            logits = library(input_ids=ids(VOCAB), use_cache=False).logits
            own = run.own_model()(ids(VOCAB))
            was = run.library.eval()(input_ids=ids(VOCAB), use_cache=False).logits
        change = float((logits - was).abs().max())
        return same_files(out, other), torch.equal(logits, own), change, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.bench.models.families")
    parser.add_argument("labels", nargs="*", help=f"default: all of {', '.join(FAMILY_CONFIGS)}")
    chosen = parser.parse_args().labels or list(FAMILY_CONFIGS)
    rows, failed = [], 0
    for label in chosen:
        same, equal, change, seconds = tried(label)
        failed += not (same and equal and change > 0)
        rows.append(
            f"| {label} | {'yes' if same else 'NO'} | {'yes' if equal else 'NO'} | {change:.3g} | {seconds:.0f} s |"
        )
        print(rows[-1], flush=True)
    print("| family | both sites export the same bytes | logits equal to the bit | changed by training | time |")
    print("|---|---|---|---|---|\n" + "\n".join(rows))
    return min(1, failed)


if __name__ == "__main__":
    raise SystemExit(main())
