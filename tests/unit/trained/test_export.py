"""`dilocoxd export` on real run directories: what is written equals the shared state, and what is wrong is refused."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click import BadParameter
from click.testing import CliRunner, Result
from safetensors import safe_open
from transformers import AutoTokenizer

from dilocoxd.cli.main import cli
from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.models import ModelConfig
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import prune
from dilocoxd.telemetry.catalogue import ValidationMeasured
from dilocoxd.telemetry.events import EventLog
from dilocoxd.trained import export as export_module
from dilocoxd.trained.anchor import anchor_of_snapshot
from dilocoxd.trained.load import filled
from dilocoxd.trainer.whole import flat_layout, whole_model
from dilocoxd.wire.entry import genesis_hash
from tests.harness.outer_worker.run_on_disk import PEER, TOKENS, VOCAB, RunOnDisk, make_run
from tests.harness.published.reloaded import reloaded
from tests.reference.state_digest import anchor_hash

ROUNDS = 5
BYTES_OF_A_SHARD = 20_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Five entries, snapshots of states 0, 2 and 4."""
    made = make_run(tmp_path_factory.mktemp("export"), rounds=ROUNDS, snapshots_at=(0, 2, 4))
    events = EventLog(made.run_dir.events)
    for number, loss in enumerate((5.5, 5.1, 4.9, 4.8, 4.75, 4.7)):
        events.emit(ValidationMeasured(round=number, validation_loss=loss))
    events.close()
    return made


def export(run: RunOnDisk, out: Path, *options: str) -> Result:
    arguments = ["export", str(run.run_dir.path), "--out", str(out), *options]
    return CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


def loaded(out: Path) -> dict[str, torch.Tensor]:
    """All tensors of an exported directory, by the safetensors library."""
    found = {}
    for path in sorted(out.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


def flat(run: RunOnDisk, out: Path) -> torch.Tensor:
    layout = flat_layout(ModelConfig.from_section(run.manifest.model))
    tensors = loaded(out)
    assert list(sorted(tensors)) == sorted(param.name for param in layout.params)
    return torch.cat([tensors[param.name].flatten() for param in layout.params])


@pytest.mark.parametrize("number", range(ROUNDS + 1))
def test_every_round_of_the_log_comes_out_to_the_bit(run: RunOnDisk, tmp_path: Path, number: int) -> None:
    assert export(run, tmp_path / "out", "--round", str(number)).exit_code == 0
    assert torch.equal(flat(run, tmp_path / "out"), run.anchors[number])


def test_the_newest_snapshot_is_taken_when_no_round_is_named(run: RunOnDisk, tmp_path: Path) -> None:
    result = export(run, tmp_path / "out", "--json")
    assert json.loads(result.output)["round"] == 4
    assert torch.equal(flat(run, tmp_path / "out"), run.anchors[4])


def test_what_the_log_has_beyond_the_newest_snapshot_is_told(run: RunOnDisk, tmp_path: Path) -> None:
    """Else somebody keeps a model that is up to `snapshot.every_rounds` rounds old."""
    told = "export: round 4 is the newest snapshot; the log goes on to round 5, which --round 5 takes\n"
    assert export(run, tmp_path / "one").stderr == told
    assert export(run, tmp_path / "two", "--round", "4").stderr == ""
    assert "the log goes on" not in export(run, tmp_path / "three", "--round", "5").stderr
    whole = make_run(tmp_path / "whole", rounds=2, snapshots_at=(0, 2))
    assert export(whole, tmp_path / "four").stderr == ""


def test_a_snapshot_directory_can_be_named_itself(run: RunOnDisk, tmp_path: Path) -> None:
    arguments = ["export", str(run.run_dir.snapshots / "2"), "--out", str(tmp_path / "out")]
    CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)
    assert torch.equal(flat(run, tmp_path / "out"), run.anchors[2])


def test_mean_of_the_last_states(run: RunOnDisk, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "--round", "5", "--average", "3")
    expected = torch.stack(run.anchors[3:6]).double().mean(0)
    assert torch.allclose(flat(run, tmp_path / "out").double(), expected, atol=1e-7)
    assert "mean of rounds | 3, 4, 5" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_formats_are_rounded_as_torch_does(run: RunOnDisk, tmp_path: Path, dtype: str) -> None:
    export(run, tmp_path / "out", "--dtype", dtype)
    assert torch.equal(flat(run, tmp_path / "out"), run.anchors[4].to(getattr(torch, dtype)))


@pytest.mark.parametrize("kind", ["native", "qwen3", "mistral", "qwen2"])
def test_transformers_gives_the_logits_of_our_own_model_to_the_bit(tmp_path: Path, kind: str) -> None:
    run = make_run(tmp_path, rounds=1, snapshots_at=(1,), model={"kind": kind})
    export(run, tmp_path / "out", "--shard-gb", str(BYTES_OF_A_SHARD / 1e9))
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    model = reloaded(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = torch.tensor([tokenizer("Number 7 is the sum")["input_ids"]])
    assert ids.shape[1] > 3
    assert tokenizer.decode(ids[0]) == "Number 7 is the sum"
    own = whole_model(ModelConfig.from_section(run.manifest.model), run.anchors[1])
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, own(ids))
    assert model.generation_config.eos_token_id is None, "an ordinary token of this tokenizer would end a text"


def test_card_tells_what_a_stranger_can_check(run: RunOnDisk, tmp_path: Path) -> None:
    export(run, tmp_path / "out", "--round", "4")
    text = (tmp_path / "out" / "README.md").read_text()
    log = EntryLog(run.run_dir.log, run.manifest.run_id, genesis_hash(run.manifest.run_id, run.manifest.sha256()))
    for fact in (
        run.manifest.run_id,
        run.manifest.sha256().hex(),
        run.digests[4],
        anchor_hash(run.anchors[4][s.start : s.stop].numpy().tobytes() for s in make_plan(run.manifest).segments).hex(),
        log.hash_at(4).hex(),
        log.hash_at(5).hex(),
        f"| `{PEER}` | 4 | {4 * TOKENS:,} |",
        "4.7500 at round 4",
    ):
        assert fact in text
    picture = (tmp_path / "out" / "loss.svg").read_text()
    points = re.search(r'polyline points="([^"]*)"', picture)
    assert points is not None
    assert len(points.group(1).split()) == 5


def test_two_exports_of_a_round_have_the_same_sums(run: RunOnDisk, tmp_path: Path) -> None:
    export(run, tmp_path / "one", "--round", "2")
    other = make_run(tmp_path / "other site", rounds=ROUNDS, snapshots_at=(0,))
    export(other, tmp_path / "two", "--round", "2")
    sums = (tmp_path / "one" / "SHA256SUMS").read_text()
    assert sums == (tmp_path / "two" / "SHA256SUMS").read_text()
    for line in sums.splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / "two" / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--round", "9"), "log ends with round 5"),
        (("--average", "9"), "not between 1 and the 5 states"),
        (("--tokenizer", "/nowhere"), "has no tokenizer.json"),
    ],
)
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(
    run: RunOnDisk, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        export(run, tmp_path / "out", *options)
    assert list(tmp_path.iterdir()) == []


def test_all_files_are_on_the_disk_before_the_directory_has_its_name(
    run: RunOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, fsync = set(), os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        if not (tmp_path / "out").exists():
            synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    export(run, tmp_path / "out", "--shard-gb", str(BYTES_OF_A_SHARD / 1e9))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "README.md"} < names
    assert {name for name in names if (tmp_path / "out" / name).stat().st_ino not in synced} == set()


def test_an_existing_directory_is_never_touched(run: RunOnDisk, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(ConfigError, match="exists already"):
        export(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_two_exports_at_once_to_one_place_do_not_meet(
    run: RunOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins when the first has written its weights."""
    refused, write = [], export_module.write_shards

    def meanwhile(*arguments: Any) -> list[str]:
        names = write(*arguments)
        if not refused:
            refused.append("")
            with pytest.raises(ConfigError, match="another process makes it just now") as error:
                export(run, tmp_path / "out")
            refused[0] = str(error.value)
        return names

    monkeypatch.setattr(export_module, "write_shards", meanwhile)
    assert export(run, tmp_path / "out").exit_code == 0
    assert "\n" not in refused[0]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert torch.equal(flat(run, tmp_path / "out"), run.anchors[4])


def test_the_folder_that_one_stands_in_may_be_named(
    run: RunOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert export(run, Path()).exit_code == 0
    assert torch.equal(flat(run, tmp_path / "here"), run.anchors[4])


@pytest.mark.parametrize("size", ["inf", "nan"])
def test_files_without_a_size_are_refused(run: RunOnDisk, tmp_path: Path, size: str) -> None:
    with pytest.raises(BadParameter, match=f"{size} is no size"):
        export(run, tmp_path / "out", "--shard-gb", size)
    assert list(tmp_path.iterdir()) == []


def test_a_size_beyond_all_files_is_one_file(run: RunOnDisk, tmp_path: Path) -> None:
    assert export(run, tmp_path / "out", "--shard-gb", "1e300").exit_code == 0
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["model.safetensors"]


@pytest.mark.parametrize("is_made", [True, False])
def test_a_link_to_a_place_on_another_disk_may_be_named(run: RunOnDisk, tmp_path: Path, *, is_made: bool) -> None:
    """What is unfinished lies beside the place itself: a rename reaches no other disk."""
    (tmp_path / "large").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "large" / "model")
    if is_made:
        (tmp_path / "large" / "model").mkdir()
    assert export(run, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out").is_symlink()
    assert torch.equal(flat(run, tmp_path / "large" / "model"), run.anchors[4])
    assert [path.name for path in (tmp_path / "large").iterdir()] == ["model"]


def test_what_a_killed_export_left_is_cleared_away(run: RunOnDisk, tmp_path: Path) -> None:
    (tmp_path / ".out.tmp" / "below").mkdir(parents=True)
    (tmp_path / ".out.tmp" / "model.safetensors").write_bytes(b"half")
    assert export(run, tmp_path / "out").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert torch.equal(flat(run, tmp_path / "out"), run.anchors[4])


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    arguments = ["export", str(tmp_path), "--out", str(tmp_path / "out")]
    with pytest.raises(ConfigError, match="neither a run directory"):
        CliRunner().invoke(cli, arguments, standalone_mode=False, catch_exceptions=False)


def test_a_damaged_snapshot_is_found_and_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "site", rounds=1, snapshots_at=(1,))
    path = run.run_dir.snapshots / "1" / "anchor.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match="does not have the sha256"):
        export(run, tmp_path / "out")
    path.write_bytes(data[:-4])
    with pytest.raises(StoreError, match="cut off"):
        export(run, tmp_path / "out")
    assert [one.name for one in tmp_path.iterdir()] == ["site"]


def test_a_snapshot_may_go_while_it_is_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "site", rounds=1, snapshots_at=(1,))
    anchor = anchor_of_snapshot(run.run_dir.snapshots / "1", run.manifest.run_id)
    prune(run.run_dir.snapshots, 0, 1)
    module = filled(ModelConfig.from_section(run.manifest.model), anchor)
    values = torch.cat([param.detach().flatten() for _, param in module.global_parameters()])
    assert torch.equal(values, run.anchors[1])


def test_payloads_that_retention_dropped_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "site", rounds=3, snapshots_at=(2,))
    log = EntryLog(run.run_dir.log, run.manifest.run_id, genesis_hash(run.manifest.run_id, run.manifest.sha256()))
    log.drop_payloads(2)
    with pytest.raises(ConfigError, match="choose one of rounds 2"):
        export(run, tmp_path / "out", "--round", "1")
    assert export(run, tmp_path / "out", "--round", "3").exit_code == 0


def test_low_rank_and_a_changing_schedule_are_replayed_too(tmp_path: Path) -> None:
    strategy = {"transform": "lowrank", "lowrank_r": 4, "error_feedback": "local"}
    run = make_run(tmp_path / "site", rounds=3, snapshots_at=(0,), strategy=strategy)
    export(run, tmp_path / "out", "--round", "3")
    assert torch.equal(flat(run, tmp_path / "out"), run.anchors[3])
    assert run.manifest.model.vocab_size == VOCAB
