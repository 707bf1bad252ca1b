"""`dilocoxd start --init DIR --lora RANK`: what it writes, and what it refuses before anything is written."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from peft import PeftModel
from safetensors.torch import load_file, save_file

from dilocoxd.cli.main import cli
from dilocoxd.cli.model.first_state import joined_first_state
from dilocoxd.config.footprint.shape import SiteShape
from dilocoxd.config.manifest import Manifest, load_manifest
from dilocoxd.config.site import load_site
from dilocoxd.errors import ConfigError
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.planner.footprint import footprint
from dilocoxd.swarm.discovery.bootstrap import Access
from dilocoxd.wire.local.outer_worker import LoadState
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.published.directory import VOCAB, publish
from tests.harness.published.prepared_here import prepared_here
from tests.harness.published.reloaded import reloaded
from tests.unit.models.families import FAMILY_CONFIGS
from tests.unit.trained.test_pretrained import export, logits, start

LLAMA = FAMILY_CONFIGS["llama tied"] | {"vocab_size": VOCAB}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a published model and a run of an adapter of it."""
    folder = tmp_path_factory.mktemp("adapter")
    publish(folder / "model", LLAMA)
    options = ("--init", str(folder / "model"), "--lora", "4", "--set", "model.seq_len=24")
    assert start(folder, *options).exit_code == 0
    return folder


def manifest_of(folder: Path) -> Manifest:
    return load_manifest(folder / "run" / "run.toml")


def test_the_run_names_the_model_by_hash_and_shares_only_the_adapter(made: Path) -> None:
    manifest = manifest_of(made)
    assert (manifest.lora.rank, manifest.lora.alpha, manifest.lora.base_name) == (4, 8.0, "model")
    assert list(manifest.lora.base_files) == ["model.safetensors"]
    assert not manifest.init.state_digest
    assert str(made) not in manifest.to_toml()
    assert load_site(made / "run" / "site.toml").paths.base == str(made / "model")
    assert all(".lora_" in spec.name for spec in make_plan(manifest).layout.params)
    assert not (made / "run" / "snapshots" / "0").exists()


def test_the_frozen_model_counts_as_memory(made: Path) -> None:
    manifest = manifest_of(made)
    frozen = sum(tensor.numel() for tensor in load_file(made / "model" / "model.safetensors").values())
    shape = SiteShape(stages=1, microbatches=0, num_sites=2)
    held = footprint(manifest, shape)
    assert held.parameters < 0.3 * frozen
    assert held.trainer_bytes > 4 * frozen


def test_the_first_state_exported_is_the_model_for_peft(made: Path) -> None:
    worker = InnerWorker(make_plan(manifest_of(made)))
    worker.do(LoadState, "")
    worker.write_snapshot(made / "run" / "snapshots" / "0")
    out = export(made)
    base = reloaded(made / "model")
    expected = logits(base)
    assert torch.equal(logits(PeftModel.from_pretrained(base, out)), expected)
    assert "LoRA adapter" in (out / "README.md").read_text()
    assert (out / "tokenizer_config.json").is_file()


def join(manifest: Manifest, init: Path | None, near: Path) -> None:
    with prepared_here(), joined_first_state(manifest, init, near, Access(("unused",), 1.0, lambda line: None)):
        pass


def test_a_newcomer_needs_the_same_files(made: Path, tmp_path: Path) -> None:
    manifest = manifest_of(made)
    with pytest.raises(ConfigError, match=r"peers do not send that model; get its 1 files .* join with --init DIR"):
        join(manifest, None, tmp_path / "run")
    join(manifest, made / "model", tmp_path / "run")
    weights = load_file(made / "model" / "model.safetensors")
    weights["model.norm.weight"] += 1
    other = tmp_path / "other"
    other.mkdir()
    save_file(weights, other / "model.safetensors")
    with pytest.raises(ConfigError, match=r"has sha256 \w{16}, the run's is"):
        join(manifest, other, tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--lora", "4"), "--lora 4: an adapter needs a model"),
        (("--init", "{made}/model", "--lora", "4", "--set", 'lora.targets=["qkv"]'), "no linear layer is called 'qkv'"),
        (("--set", "lora.rank=4"), "model.kind = 'native'"),
        (("--set", "lora.alpha=4"), r"\[lora\] says more"),
    ],
)
def test_what_is_wrong_is_one_sentence(made: Path, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        start(tmp_path, *(option.replace("{made}", str(made)) for option in options))
    assert not (tmp_path / "run").exists()


def test_a_cut_off_model_is_refused(made: Path, tmp_path: Path) -> None:
    publish(tmp_path / "model", LLAMA)
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cut off"):
        start(tmp_path, "--init", str(tmp_path / "model"), "--lora", "4")
    weights = load_file(made / "model" / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, path)
    with pytest.raises(ConfigError, match="NaN or Inf"):
        start(tmp_path, "--init", str(tmp_path / "model"), "--lora", "4")


def test_help_names_the_option() -> None:
    assert "--lora RANK" in CliRunner().invoke(cli, ["start", "--help"]).output
