"""`start --init` streams: memory grows by some pieces and not by the model, however it is cut into files."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from dilocoxd.cli.model.origin import Origin
from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.models import ModelConfig
from dilocoxd.models.build import check_model
from dilocoxd.models.pretrained import Pretrained
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store.tensor_header import INDEX_NAME, TensorEntry, encode_header
from dilocoxd.trained.incoming import first_state
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


def status_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


class Growth:
    """How far the memory of this process has been above what it is now."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        self._before = status_mib("VmRSS")

    def mib(self) -> float:
        return status_mib("VmHWM") - self._before


@pytest.fixture
def model(tmp_path: Path) -> Iterator[tuple[Path, Manifest]]:
    yield tmp_path / "model", publish_wide(tmp_path / "model")
    for path in tmp_path.glob("*/*.safetensors"):
        path.unlink()


def test_a_model_is_never_whole_in_memory(tmp_path: Path, model: tuple[Path, Manifest]) -> None:
    folder, manifest = model
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    (tmp_path / "out").mkdir()
    arguments = ["--run-toml", str(tmp_path / "run.toml"), "--init", str(folder), "--out", str(tmp_path / "out")]
    # What is loaded once, and the model in small that is tried, are not what is asked.
    check_model(ModelConfig.of_run(manifest), keeps_documents_apart=False)
    answer, told = io.StringIO(), io.StringIO()
    growth = Growth()
    with redirect_stdout(answer), redirect_stderr(told):
        assert first_state.main(arguments) == 0, told.getvalue()
    grown = growth.mib()
    written = (tmp_path / "out" / "anchor.safetensors").stat().st_size / 2**20
    assert written > MODEL_MIB_MIN
    assert len(json.loads(answer.getvalue())["files"]) == SHARDS
    assert grown < GROWTH_MIB_MAX, f"{grown:.0f} MiB for a model of {written:.0f} MiB"


def test_holding_it_would_be_seen(model: tuple[Path, Manifest]) -> None:
    folder, manifest = model
    source, growth = Pretrained(folder), Growth()
    held = [piece + np.float32(1) for spec in make_plan(manifest).layout.params for piece in source.values(spec)]
    assert growth.mib() > MODEL_MIB_MIN, len(held)
