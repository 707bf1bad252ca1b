"""`start --from RUN_DIR@ROUND`: state 0 of the new run is that state to the bit, and what else it takes over."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from dilocoxd.cli.main import cli
from dilocoxd.config.manifest import Manifest, manifest_from_canonical
from dilocoxd.errors import ConfigError
from dilocoxd.models import ModelConfig
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.store.snapshots import ANCHOR_NAME
from dilocoxd.trainer.whole import flat_layout
from dilocoxd.wire.local import buffers as local_buffers
from dilocoxd.wire.local.outer_worker import LoadState
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.run_on_disk import TEXT, RunOnDisk, make_run
from tests.harness.published.prepared_here import prepared_here

ROUNDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Three entries, one snapshot: of state 2."""
    return make_run(tmp_path_factory.mktemp("parent"), rounds=ROUNDS, snapshots_at=(2,))


def start(parent: object, folder: Path, *options: str, is_apart: bool = False) -> Result:
    """`is_apart`: state and text are read as they are for an operator, in processes of their own."""
    text = folder / "text.txt"
    text.write_text("".join(TEXT))
    arguments = ["start", "--from", str(parent), "--no-run", "--dir", str(folder / "new"), *options]
    if "--data" not in options:
        arguments += ["--data", f"numbers={text}"]
    with nullcontext() if is_apart else prepared_here():
        return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


def first_parameters(folder: Path, manifest: Manifest) -> torch.Tensor:
    tensors = load_file(folder / "new" / "snapshots" / "0" / ANCHOR_NAME)
    layout = flat_layout(ModelConfig.from_section(manifest.model))
    return torch.cat([tensors[param.name].flatten() for param in layout.params])


@pytest.mark.parametrize(("suffix", "number"), [("@2", 2), ("@1", 1), ("@0", 0), ("", ROUNDS)])
def test_any_state_of_the_other_run_is_the_first_one_to_the_bit(
    run: RunOnDisk, tmp_path: Path, suffix: str, number: int
) -> None:
    start(f"{run.run_dir.path}{suffix}", tmp_path)
    new = open_run_dir(tmp_path / "new")
    manifest, site = new.load()
    assert torch.equal(first_parameters(tmp_path, manifest), run.anchors[number])
    assert manifest.init.parent == f"{run.manifest.run_id}@{number}"
    assert manifest.run_id != run.manifest.run_id and manifest.run.created
    assert manifest.seeds.data == run.manifest.seeds.data + 1, "the text comes in another order"
    assert site.paths.cache == run.run_dir.load()[1].paths.cache
    worker = InnerWorker(make_plan(manifest))
    ready = worker.do(LoadState, str(new.snapshots / "0"))
    assert ready.state_digest.hex() == manifest.init.state_digest
    assert torch.equal(worker.floats(local_buffers.ANCHOR), run.anchors[number])
    assert manifest_from_canonical(manifest.canonical_bytes(), source="peer") == manifest


def test_a_snapshot_directory_is_a_parent_too(run: RunOnDisk, tmp_path: Path) -> None:
    start(run.run_dir.snapshots / "2", tmp_path, is_apart=True)
    manifest, _ = open_run_dir(tmp_path / "new").load()
    assert torch.equal(first_parameters(tmp_path, manifest), run.anchors[2])


def test_fields_can_be_changed_and_a_new_text_keeps_the_tokenizer(run: RunOnDisk, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{i} bottles on the wall.\n" for i in range(3000)))
    start(f"{run.run_dir.path}@2", tmp_path, "--set", "outer.lr=0.25", "--data", f"bottles={other}")
    manifest, _ = open_run_dir(tmp_path / "new").load()
    assert (manifest.outer.lr, manifest.data.corpus) == (0.25, "bottles")
    assert (manifest.tokenizer.kind, manifest.tokenizer.sha256) == ("files", run.manifest.tokenizer.sha256)
    before = (run.run_dir.path / "tokenizer" / "tokenizer.json").read_bytes()
    assert (tmp_path / "new" / "tokenizer" / "tokenizer.json").read_bytes() == before
    assert manifest.data.sha256 not in ("", run.manifest.data.sha256)


@pytest.mark.parametrize(
    ("suffix", "options", "sentence"),
    [
        ("@9", (), r"round 9 is not there yet; write at most .*run@3"),
        ("@" + 5000 * "9", (), r"round \d+ is not there yet; write at most .*run@3"),
        ("@2", ("--set", "model.hidden_size=64"), "leave the fields of .model. alone that change a shape"),
        ("@2", ("--set", "model.num_layers=9"), "parameters, the new run's model .*; leave its model as it is"),
        ("@2", ("tiny",), "tiny and --from .*: a run begins from one of them"),
        ("@2", ("--init", "x"), "--from takes model and tokenizer from the other run"),
        ("x", (), "neither a run directory"),
    ],
)
def test_what_cannot_be_a_parent_is_refused_and_nothing_is_left(
    run: RunOnDisk, tmp_path: Path, suffix: str, options: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        start(f"{run.run_dir.path}{suffix}", tmp_path, *options)
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_damaged_state_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    run = make_run(tmp_path / "old", rounds=1, snapshots_at=(1,))
    anchor = run.run_dir.snapshots / "1" / ANCHOR_NAME
    data = bytearray(anchor.read_bytes())
    data[-1] ^= 1
    anchor.write_bytes(data)
    with pytest.raises(ConfigError, match="does not have the sha256 that its index names"):
        start(f"{run.run_dir.path}@1", tmp_path)
    assert not (tmp_path / "new").exists()
