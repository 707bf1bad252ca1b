"""What is done with a trained run: export, evaluate, generate, verify, and a run that goes on from it.

Refused in one sentence, and done as that says; commands where there is one that leads there.
"""

import json
import os
import shutil
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dilocoxd.cli.commands import new_manifest, own_text
from dilocoxd.config.sections.paths import PathsSection
from dilocoxd.config.site import SiteConfig
from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest
from dilocoxd.models.config import ModelConfig
from dilocoxd.outerworker.plan import make_plan
from dilocoxd.store.durable import hidden_folder
from dilocoxd.store.log import SUFFIX, EntryLog, PayloadSource
from dilocoxd.store.log_record import read_record
from dilocoxd.store.rundir import open_run_dir
from dilocoxd.store.snapshots import ANCHOR_NAME, INDEX_NAME, read_index
from dilocoxd.trained.again.held import HeldFiles
from dilocoxd.trained.anchor import AnchorFile, AnchorReader, anchor_of_snapshot
from dilocoxd.trained.chain import read_chain
from dilocoxd.trained.found import find_run
from dilocoxd.trained.incoming.first_state import complete_first_state, write_first_state
from dilocoxd.trained.incoming.stored_state import StoredState
from dilocoxd.trained.load import filled, frozen_model
from dilocoxd.trained.numbers import to_bfloat16, to_float16, to_float32
from dilocoxd.trained.tokenizer import TokenizerFiles, require_packed_with
from dilocoxd.trainer.generate import load_anchor, newest_snapshot
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.wire.entry import genesis_hash
from dilocoxd.wire.local.outer_worker import LoadState
from tests.harness.outer_worker.in_process import InnerWorker
from tests.harness.outer_worker.run_on_disk import TEXT, RunOnDisk, make_run
from tests.harness.published.directory import LINES, VOCAB, publish, save_tokenizer
from tests.harness.published.prepared_here import prepared_here
from tests.remedies.refused.rooms.told import stored, told
from tests.remedies.refused.rows import INIT
from tests.remedies.test_findings import invoke
from tests.unit.models.families import FAMILY_CONFIGS
from tests.unit.trained.test_parent import start

ROUNDS = 3
RELAY = "cli/model/first_state.py"
"""Repeats what the process that makes a state said."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunOnDisk:
    """Three entries, snapshots of states 0 and 2."""
    return make_run(tmp_path_factory.mktemp("whole"), rounds=ROUNDS, snapshots_at=(0, 2))


@pytest.fixture
def run(whole: RunOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A copy, in the folder where we are."""
    shutil.copytree(whole.run_dir.path, tmp_path / "run")
    (tmp_path / "text.txt").write_text("".join(TEXT))
    monkeypatch.chdir(tmp_path)
    return "run"


def test_rounds_to_export(run: str) -> None:
    with told("trained/again/held.py", "choose one up to that"):
        invoke("export", run, "--out", "out", "--round", "9")
    with told("trained/choose.py", "give one of those"):
        invoke("export", run, "--out", "out", "--average", "9")
    invoke("export", run, "--out", "out", "--round", "3", "--average", "2")
    with told("trained/export.py", "give --out a new directory, or remove this one"):
        invoke("export", run, "--out", "out")
    invoke("export", run, "--out", "new")
    shutil.rmtree("out")
    invoke("export", run, "--out", "out")
    with told("store/durable.py", "wait for that one, or give another place"), hidden_folder(Path("last"), ".tmp"):
        invoke("export", run, "--out", "last")
    Path(".last.tmp").symlink_to("run")
    with told("store/durable.py", "is a link, where a folder for unfinished work would be; remove it"):
        invoke("export", run, "--out", "last")
    Path(".last.tmp").unlink()
    invoke("export", run, "--out", "last")


def test_snapshots_that_are_damaged_or_of_another_run(run: str) -> None:
    other = make_run(Path("other"), rounds=1, snapshots_at=(1,), run={"name": "other"})
    shutil.copytree(other.run_dir.snapshots / "1", "run/snapshots/1")
    with stored("trained/anchor.py", "name the snapshot of this run"):
        invoke("export", run, "--out", "one", "--round", "1")
    invoke("export", "run/snapshots/0", "--out", "one")
    shutil.rmtree("run/snapshots/1")
    path = Path("run/snapshots/2") / ANCHOR_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    with stored("trained/anchor.py", "is cut off or damaged; use another snapshot"):
        invoke("export", run, "--out", "two")
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with stored("trained/anchor.py", "does not have the sha256 that its index names (VALUE); use another snapshot"):
        invoke("export", run, "--out", "two")
    invoke("export", run, "--out", "two", "--round", "0")


def test_a_snapshot_of_a_branch_that_lost(run: str) -> None:
    invoke("export", run, "--out", "right", "--round", "3")
    folder = Path("run/snapshots/2")
    shutil.rmtree(folder)
    shutil.copytree("run/snapshots/0", folder)
    theirs = replace(read_index(folder), round=2)
    (folder / INDEX_NAME).write_bytes(theirs.encode())
    with stored("trained/choose.py", "is not the state that entry VALUE names (a fork that lost?); give --round"):
        invoke("export", run, "--out", "two")
    invoke("export", run, "--out", "two", "--round", "1")
    invoke("export", run, "--out", "three", "--round", "3")
    files = [Path(out, "model.safetensors").read_bytes() for out in ("right", "three")]
    assert files[0] == files[1], "the way to it leads past that snapshot"


def test_rounds_that_nothing_here_leads_to(run: str) -> None:
    shutil.copytree("run", "site")
    log_of("run").drop_payloads(3)
    with told("trained/again/held.py", "choose one of rounds VALUE, ask another site"):
        invoke("export", run, "--out", "one", "--round", "1")
    invoke("export", run, "--out", "two", "--round", "2")
    invoke("export", "site", "--out", "one", "--round", "1")
    shutil.rmtree("run/snapshots")
    open_run_dir(Path(run)).events.touch()  # a daemon was here
    with told("trained/again/held.py", "before it; ask another site, or have a running one write a snapshot first"):
        invoke("export", run, "--out", "three", "--round", "3")
    invoke("export", "site", "--out", "three", "--round", "3")


def log_of(run: str) -> EntryLog:
    manifest = open_run_dir(Path(run)).load()[0]
    return EntryLog(Path(run) / "log", manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256()))


def test_a_log_whose_entries_are_not_where_they_were(run: str) -> None:
    first, second = (Path(f"run/log/{number:012d}{SUFFIX}") for number in (0, 1))
    kept = second.read_bytes()
    shutil.copy(first, second)
    with stored("trained/chain.py", "does not continue the chain of run VALUE; see `dilocoxd log verify`"):
        invoke("export", run, "--out", "out", "--round", "3")
    with pytest.raises(StoreError, match=r"damaged at entry 1 of 3: .*; restore that file from a backup"):
        invoke("log", "verify", run)
    second.write_bytes(kept)
    assert not invoke("log", "verify", run).return_value
    invoke("export", run, "--out", "out", "--round", "3")


def test_a_state_that_is_made_again_otherwise(run: str) -> None:
    """As of a version that computes otherwise: the last entry names another state than what comes before leads to."""
    log = log_of(run)
    last, payload = log.entry(2), log.payload(2)
    shutil.copy(payload.path, "kept")
    log.roll_back(2)
    entry = replace(last.entry, state_digest=Digest(bytes(32)))
    record = read_record(Path("kept"))
    with Path("kept").open("rb") as file:
        source = PayloadSource(file.fileno(), payload.offset, record.lengths)
        log.append(replace(last, entry=entry), source)
    with stored("trained/again/rebuild.py", "give --round with one below VALUE, or ask another site"):
        invoke("export", run, "--out", "out", "--round", "3")
    invoke("export", run, "--out", "out", "--round", "1")


def test_files_that_change_while_they_are_read(run: str) -> None:
    """As retention and a change of the branch do under a site that runs."""
    found, chain = find_run(Path(run)), list(read_chain(Path("run/log"), open_run_dir(Path(run)).load()[0]))
    shutil.copytree("run/log", "kept")
    shutil.copy(chain[1].path, chain[0].path)
    with (
        HeldFiles(found, chain) as held,
        told("trained/again/held.py", "changed to another branch meanwhile; try again"),
    ):
        held.ways([1])
    shutil.rmtree("run/log")
    Path("kept").rename("run/log")
    with HeldFiles(found, chain) as held:
        assert [leg.number for leg in held.ways([1])] == [1]
    anchor = anchor_of_snapshot(Path("run/snapshots/2"), run_id(run))
    os.truncate(anchor.path, anchor.offset + 4)
    with stored("trained/anchor.py", "became shorter while it was read; try again with another snapshot"):
        read_whole(anchor)
    read_whole(anchor_of_snapshot(Path("run/snapshots/0"), run_id(run)))


def read_whole(anchor: AnchorFile) -> None:
    with anchor.open() as file:
        reader = AnchorReader(anchor, file)
        for entry in anchor.entries:
            deque(reader.pieces(entry), maxlen=0)
        reader.finish()


def test_places_to_export_from(run: str) -> None:
    with told("trained/found.py", "give the directory of `dilocoxd start` or RUN_DIR/snapshots/ROUND"):
        invoke("export", "run/snapshots", "--out", "out")
    invoke("export", "run/snapshots/2", "--out", "out")
    shutil.copytree("run/snapshots", "elsewhere/snapshots")
    with told("trained/found.py", "put that run's run.toml there, it says which model"):
        invoke("export", "elsewhere/snapshots/2", "--out", "again", "--tokenizer", "run/tokenizer")
    shutil.copy("run/run.toml", "elsewhere")
    invoke("export", "elsewhere/snapshots/2", "--out", "again", "--tokenizer", "run/tokenizer")
    shutil.rmtree("elsewhere/snapshots/0")
    with told("trained/choose.py", "choose one of rounds"):
        invoke("export", "elsewhere", "--round", "1", "--out", "third", "--tokenizer", "run/tokenizer")
    invoke("export", "elsewhere", "--round", "2", "--out", "third", "--tokenizer", "run/tokenizer")
    shutil.rmtree("run/snapshots")
    open_run_dir(Path(run)).events.touch()  # a daemon was here
    with told("trained/found.py", "wait for the first one (snapshot.every_rounds = VALUE), or give --round"):
        invoke("export", run, "--out", "fourth")
    invoke("export", run, "--out", "fourth", "--round", "1")
    shutil.copytree("elsewhere/snapshots", "run/snapshots")  # it has come
    invoke("export", run, "--out", "fifth")


def test_texts_to_measure_and_to_go_on(run: str) -> None:
    Path("none").write_bytes(b"\xff\xfe")
    with told("trained/measure.py", "give a text file"):
        invoke("evaluate", run, "--text", "none")
    Path("short").write_text("")
    with told("trained/measure.py", "give a longer text"):
        invoke("evaluate", run, "--text", "short")
    Path("long").write_bytes(b"word " * (13 << 20))
    with told("trained/measure.py", "MiB; give a part of it"):
        invoke("evaluate", run, "--text", "long")
    invoke("evaluate", run, "--text", "text.txt")
    table = json.loads(Path("run/tokenizer/tokenizer.json").read_text())
    table["model"] |= {"vocab": {word: 1000 + number for word, number in table["model"]["vocab"].items()}}
    Path("other").mkdir()
    Path("other/tokenizer.json").write_text(json.dumps(table))
    with told("trainer/tokens/vocabulary.py", "give the tokenizer that belongs to the model"):
        invoke("evaluate", run, "--text", "text.txt", "--tokenizer", "other")
    invoke("evaluate", run, "--text", "text.txt", "--tokenizer", "run/tokenizer")
    with told("trained/text.py", "give at least a character"):
        invoke("generate", run, "--prompt", "")
    with told("trained/text.py", "give it in UTF-8"):
        invoke("generate", run, "--prompt", "caf\udce9")
    invoke("generate", run, "--prompt", "caf\xe9", "--max-tokens", "2")


def test_exports_to_verify(run: str) -> None:
    invoke("export", run, "--out", "out", "--round", "3")
    card = Path("out/README.md").read_text()
    Path("empty").mkdir()
    with told("trained/proof/check.py", "give a directory that `dilocoxd export` wrote"):
        invoke("verify", "empty", run)
    Path("out/README.md").write_text("# hello")
    with told("trained/proof/check.py", "does not say which run and round this is; give a whole export"):
        invoke("verify", "out", run)
    Path("out/README.md").write_text(card.replace(run_id(run), "other-0123456789abcdef"))
    with told("trained/proof/check.py", "give that run's directory"):
        invoke("verify", "out", run)
    Path("out/README.md").write_text(card)
    Path("out/model.safetensors").rename("aside")
    Path("out/model.safetensors").write_bytes(b"PK")
    with told("trained/proof/check.py", "cannot be read as safetensors (VALUE); give a whole export"):
        invoke("verify", "out", run)
    Path("aside").rename("out/model.safetensors")
    assert not invoke("verify", "out", run).return_value


def run_id(run: str) -> str:
    return open_run_dir(Path(run)).load()[0].run_id


def test_a_run_that_goes_on_from_another(run: str, tmp_path: Path) -> None:
    parent = f"{tmp_path / run}@2"
    with told("trained/incoming/stored_state.py", "alone that change a shape", RELAY):
        start(parent, tmp_path, "--set", "model.hidden_size=64")
    with told("trained/incoming/stored_state.py", "leave its model as it is", RELAY):
        start(parent, tmp_path, "--set", "model.num_layers=9")
    with stored("cli/model/first_state.py", "give --dir a writable place"):
        start(parent, tmp_path, "--dir", "/proc/new")
    start(parent, tmp_path, "--set", "outer.lr=0.25")


def test_state_0_that_a_peer_sent(run: str, tmp_path: Path) -> None:
    manifest = open_run_dir(Path(run)).load()[0]
    plan, source = make_plan(manifest), find_run(Path(run))

    def complete(folder: str, data: bytes) -> None:
        Path(folder).mkdir()
        (Path(folder) / ANCHOR_NAME).write_bytes(data)
        complete_first_state(plan, Path(folder), lambda _: None)

    with told("trained/incoming/first_state.py", "a peer sent no model (VALUE); join through another peer"):
        complete("one", b"no tensors")
    path = Path("run/snapshots/0") / ANCHOR_NAME
    save_file({"other": np.zeros(4, np.float32)}, "other")
    with told("trained/incoming/first_state.py", "a peer sent another model than the run's; join through another peer"):
        complete("two", Path("other").read_bytes())
    Path("first").mkdir()
    with StoredState(source, 0, Path("scratch"), lambda _: None) as state:
        write_first_state(plan, state, Path("first"), lambda _: None)
    complete("three", (Path("first") / ANCHOR_NAME).read_bytes())
    assert path.is_file()


def test_models_from_snapshots(run: str) -> None:
    config = ModelConfig.from_section(open_run_dir(Path(run)).load()[0].model)
    other = make_run(Path("other"), rounds=1, snapshots_at=(1,), model={"hidden_size": 64})
    theirs = anchor_of_snapshot(other.run_dir.snapshots / "1", other.manifest.run_id)
    with told("trained/load.py", "give its own snapshot"):
        filled(config, theirs)
    filled(config, anchor_of_snapshot(Path("run/snapshots/2"), run_id(run)))
    with told("trainer/generate.py", "wait for the first one or give another run"):
        newest_snapshot(Path("mine"))
    with told("trainer/generate.py", "give a snapshot of this run"):
        load_anchor(newest_snapshot(other.run_dir.path), config)
    Path("cut").write_bytes(b"nonsense")
    with told("trainer/generate.py", "give a run directory with a snapshot"):
        load_anchor(Path("cut"), config)
    load_anchor(newest_snapshot(Path(run)), config)


def test_a_snapshot_does_not_know_where_stores_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in TEXT))
    save_tokenizer(Path("tokenizer"))
    options = PackOptions(Path("tokenizer"), held_fraction=0.2)
    pack([Path("lines.jsonl")], Path("store"), options, lambda _: None, lambda *_: None)
    sizes = {"vocab_size": VOCAB, "seq_len": 16}
    theirs, corpora = own_text(new_manifest("tiny", {"model": sizes}), {"data": ("store",)})
    made = make_run(tmp_path, rounds=1, snapshots_at=(1,), model=sizes, data=theirs.data.model_dump())
    made.run_dir.site_toml.write_text(SiteConfig(paths=PathsSection(corpora=corpora)).to_toml())
    elsewhere(made.run_dir.path)
    with told("trained/measure.py", "give a run directory, whose site.toml knows where the token stores are"):
        invoke("evaluate", "elsewhere/snapshots/1")
    assert "validation" in invoke("evaluate", "run").output


def elsewhere(run: Path) -> None:
    """Snapshots and run.toml of a run, in another place."""
    shutil.copytree(run / "snapshots", "elsewhere/snapshots")
    shutil.copy(run / "run.toml", "elsewhere")


def test_a_snapshot_does_not_know_the_model_under_an_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(LINES))
    publish(tmp_path / "model", FAMILY_CONFIGS["llama tied"] | {"vocab_size": VOCAB})
    with prepared_here():
        invoke(*f"{INIT} run --api-port 0 --data text.txt --init model --lora 4 --set model.seq_len=24".split())
    worker = InnerWorker(make_plan(open_run_dir(Path("run")).load()[0]))
    worker.do(LoadState, "")
    worker.write_snapshot(tmp_path / "run" / "snapshots" / "0")
    elsewhere(Path("run"))
    with told("trained/load.py", "give a run directory, which knows its model"):
        frozen_model(find_run(Path("elsewhere/snapshots/0")))
    known = frozen_model(find_run(Path("run")))
    assert known is not None and known.open()


def test_numbers_that_are_too_large_for_half_precision() -> None:
    large = np.array([70000.0], np.float32)
    with told("trained/numbers.py", "export as bfloat16 or float32"):
        to_float16(large)
    assert to_bfloat16(large) and to_float32(large)


def test_tokenizers(tmp_path: Path) -> None:
    files = TokenizerFiles(tmp_path / "mine")
    save_tokenizer(files.folder)
    good = files.path.read_bytes()
    os.truncate(files.path, 1 << 40)
    with told("trained/tokenizer.py", "which is no tokenizer; give another"):
        files.check()
    files.path.write_text(json.dumps({"added_tokens": [{"id": 1}]}))
    with told("trained/tokenizer.py", "its added tokens are none (VALUE); give a whole tokenizer"):
        files.check()
    files.path.write_text("nonsense")
    with told("trained/tokenizer.py", "cannot be read (VALUE); give a whole tokenizer"):
        files.check()
    files.path.write_bytes(good)
    files.check()


def test_a_store_of_another_tokenizer(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "mine")
    save_tokenizer(tmp_path / "other", lines=TEXT)
    (tmp_path / "text.txt").write_text("".join(TEXT))

    def store(name: str, tokenizer: str) -> dict[str, str]:
        pack(
            [tmp_path / "text.txt"], tmp_path / name, PackOptions(tmp_path / tokenizer), lambda _: None, lambda *_: None
        )
        return {"texts": str(tmp_path / name)}

    with told("trained/tokenizer.py", "pack the text again with --tokenizer"):
        require_packed_with(tmp_path / "mine", store("one", "other"))
    require_packed_with(tmp_path / "mine", store("two", "mine"))
