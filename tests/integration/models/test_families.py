"""Pretrained models through two real sites, a pipeline and one process, and out again; whole and as an adapter."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dilocoxd.config.sections.adapter import LoraSection
from dilocoxd.outerworker.plan import make_plan
from tests.harness.published.directory import VOCAB
from tests.harness.published.reloaded import reloaded
from tests.harness.running.family_run import ids, same_files, train
from tests.unit.models.families import FAMILY_CONFIGS

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
ALWAYS = ("qwen3 wide heads", "deepseek_v3")
"""Tied, and with heads of a size of their own; experts, compressed attention, and numbers that are saved but not
trained. The others take `make test-families`."""
WIDE = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": VOCAB}


def marked(label: str) -> object:
    return pytest.param(label, id=label, marks=[] if label in ALWAYS else pytest.mark.families)


@pytest.mark.parametrize("label", map(marked, FAMILY_CONFIGS))
def test_a_family_in_and_out(tmp_path: Path, label: str) -> None:
    run = train(tmp_path, FAMILY_CONFIGS[label] | {"vocab_size": VOCAB})
    out, other = run.export(run.first), run.export(run.second)
    assert same_files(out, other)
    library = reloaded(out)
    with torch.no_grad():
        logits = library(input_ids=ids(VOCAB), use_cache=False).logits
        assert torch.equal(logits, run.own_model()(ids(VOCAB)))
        was = run.library.eval()(input_ids=ids(VOCAB), use_cache=False).logits
    assert float((logits - was).abs().max()) > 0, "nothing was trained"


def test_two_sites_train_an_adapter_that_peft_loads(tmp_path: Path) -> None:
    run = train(
        tmp_path, FAMILY_CONFIGS["llama tied"] | WIDE, "--lora", "2", "--set", "inner.lr=0.01",
        "--set", 'lora.targets=["q_proj", "v_proj"]', joining=("--init", str(tmp_path / "model")),
    )  # fmt: skip
    manifest = run.manifest()
    whole = manifest.model_copy(update={"lora": LoraSection()})
    assert make_plan(manifest).payload_total <= 0.02 * make_plan(whole).payload_total
    out, other = run.export(run.first), run.export(run.second)
    assert same_files(out, other)
    weights = load_file(out / "adapter_model.safetensors")
    assert max(float(tensor.abs().max()) for name, tensor in weights.items() if ".lora_B." in name) > 0
    base = reloaded(tmp_path / "model")
    with torch.no_grad():
        before = base(input_ids=ids(VOCAB)).logits
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(base, out).eval()
        logits = adapted(input_ids=ids(VOCAB)).logits
        assert torch.equal(logits, run.own_model()(ids(VOCAB)))
        assert not torch.equal(logits, before)
    assert json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"] == "model"
    card = (out / "README.md").read_text()
    assert manifest.lora.base_files["model.safetensors"] in card
    whole_bytes = (tmp_path / "model" / "model.safetensors").stat().st_size
    snapshots = list((run.first.run_dir / "snapshots").glob("*/anchor.safetensors"))
    assert snapshots
    assert all(snapshot.stat().st_size < 0.05 * whole_bytes for snapshot in snapshots), "the model travels"
