"""`start --init` streams: memory grows by some pieces and not by the model, however it is cut into files.

Each measurement has a process of its own: what earlier tests of this one freed is resident still, and who takes it
again does not grow.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dilocoxd.cli.model.origin import Origin
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store.tensor_header import INDEX_NAME, TensorEntry, encode_header
from tests.harness.published.directory import VOCAB, save_tokenizer
from tests.unit.models.families import FAMILY_CONFIGS

SHARDS = 4
MODEL_MIB_MIN = 100
"""In float32: what the snapshot takes. The files, bfloat16, are half of it."""
GROWTH_MIB_MAX = 32
"""A quarter of it, and less than two of four files. Pieces are 4 MiB; some of them lie beside each other."""
WIDE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2, "vocab_size": VOCAB}


def publish_wide(folder: Path) -> Manifest:
    """A llama of bfloat16 zeros in SHARDS files that take no room on most disks."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(FAMILY_CONFIGS["llama tied"] | WIDE))
    save_tokenizer(folder)
    tables = {
        "run": {"name": "test"},
        "data": {"corpus": "english"},
        "inner": {"lr": 1e-3, "total_steps": 9, "batch_sequences": 4, "microbatches": 2},
        "strategy": {"inner_steps": 4},
    }
    manifest = manifest_from_tables(Origin(init=folder).applied(tables), source="test")
    specs, names = make_plan(manifest).layout.params, {}
    for number in range(SHARDS):
        entries = [TensorEntry(spec.name, spec.shape, "BF16") for spec in specs[number::SHARDS]]
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.write(encode_header(entries, {"format": "pt"}))
            file.truncate(file.tell() + sum(entry.num_bytes for entry in entries))
        names |= {entry.name: f"model-{number}.safetensors" for entry in entries}
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": names}))
    return manifest


MEASURED = """
import io, json, sys
from contextlib import redirect_stdout
from pathlib import Path
import numpy as np
from dilocoxd.config.manifest import load_manifest
from dilocoxd.models import ModelConfig
from dilocoxd.models.build import check_model
from dilocoxd.models.pretrained import Pretrained
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.trained.incoming import first_state

run_toml, folder, out = map(Path, sys.argv[1:])

def status_mib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))

def imported():
    answer = io.StringIO()
    with redirect_stdout(answer):
        assert first_state.main(["--run-toml", str(run_toml), "--init", str(folder), "--out", str(out)]) == 0
    return len(json.loads(answer.getvalue())["files"])

def held():
    specs, source = make_plan(load_manifest(run_toml)).layout.params, Pretrained(folder)
    return len([piece + np.float32(1) for spec in specs for piece in source.values(spec)])

# What is loaded once, and the model in small that is tried, are not what is asked.
check_model(ModelConfig.of_run(load_manifest(run_toml)), keeps_documents_apart=False)
Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
before = status_mib("VmRSS")
number = DOING()
print(json.dumps({"number": number, "grown_mib": status_mib("VmHWM") - before}))
"""
"""How far the memory of a fresh process was above what it had before it did this."""


def measured(doing: str, folder: Path) -> dict[str, Any]:
    (folder / "out").mkdir()
    command = [sys.executable, "-c", MEASURED.replace("DOING", doing)]
    places = [folder / name for name in ("run.toml", "model", "out")]
    done = subprocess.run([*command, *places], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """Has the model and a run.toml that begins with it."""
    (tmp_path / "run.toml").write_text(publish_wide(tmp_path / "model").to_toml())
    yield tmp_path
    for path in tmp_path.glob("*/*.safetensors"):
        path.unlink()


def test_a_model_is_never_whole_in_memory(run: Path) -> None:
    found = measured("imported", run)
    written = (run / "out" / "anchor.safetensors").stat().st_size / 2**20
    assert written > MODEL_MIB_MIN
    assert found["number"] == SHARDS
    assert found["grown_mib"] < GROWTH_MIB_MAX, f"{found['grown_mib']:.0f} MiB for a model of {written:.0f} MiB"


def test_holding_it_would_be_seen(run: Path) -> None:
    found = measured("held", run)
    assert found["grown_mib"] > MODEL_MIB_MIN, found
