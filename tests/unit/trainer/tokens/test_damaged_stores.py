"""Files of a store with anything in them: one sentence and status 78, the same for trainers and the command line."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from dilocoxd.cli.corpus import source_at
from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens.__main__ import main
from dilocoxd.trainer.tokens.store import INDEX, PATHS, TokenStore, open_store
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("packed")
    write_tokenizer(folder)
    return packed(folder, [write_lines(folder / "a.jsonl", DOCUMENTS[:60])])


def copy(store: TokenStore, folder: Path) -> Path:
    """A store of its own, to be damaged."""
    (folder / "copy").mkdir()
    for path in store.directory.iterdir():
        (folder / "copy" / path.name).write_bytes(path.read_bytes())
    return folder / "copy"


OF_INDEX: list[tuple[str, Any]] = [
    ("vocab_size", "x"), ("vocab_size", 1.5), ("vocab_size", True), ("eos", "x"), ("eos", -1), ("dtype", ["x"]),
    ("dtype", "int8"), ("format", 2), ("shards", 5), ("shards", [5]), ("tokenizer_sha256", 7), ("more", 1),
]  # fmt: skip
OF_SHARD: list[tuple[str, Any]] = [
    ("num_tokens", "85660"), ("num_tokens", None), ("num_tokens", 1.5), ("num_tokens", -5), ("num_tokens", 10**30),
    ("num_documents", -1), ("name", 5), ("name", "train-../../etc/hostname"), ("sha256", "x"), ("ends_sha256", None),
    ("mask_sha256", []), ("more", 1),
]  # fmt: skip


def refuse(folder: Path, said: str) -> None:
    """By what trains and by what starts a run."""
    with pytest.raises(ConfigError, match=said):
        open_store(folder)
    with pytest.raises(ConfigError, match=rf"--data x=.*{said}"):
        source_at("x", str(folder), 1000)


@pytest.mark.parametrize(("name", "value"), [*OF_INDEX, *(("shard", row) for row in OF_SHARD)], ids=str)
def test_index_with_a_wrong_field_is_refused(name: str, value: Any, store: TokenStore, tmp_path: Path) -> None:
    folder = copy(store, tmp_path)
    tables = json.loads((folder / INDEX).read_bytes())
    if name == "shard":
        tables["shards"][0][value[0]] = value[1]
    else:
        tables[name] = value
    (folder / INDEX).write_text(json.dumps(tables))
    refuse(folder, r"index\.json is damaged \(")


@pytest.mark.parametrize("text", ["[" * 200_000, "[]", "null", "\xff", "", '{"shards":' + "[" * 200_000])
def test_index_that_is_none_is_refused(text: str, store: TokenStore, tmp_path: Path) -> None:
    folder = copy(store, tmp_path)
    (folder / INDEX).write_text(text, encoding="latin-1")
    refuse(folder, r"index\.json is damaged \(")


@pytest.mark.parametrize("name", [INDEX, PATHS])
def test_file_that_is_larger_than_any_is_not_read(name: str, store: TokenStore, tmp_path: Path) -> None:
    """A few bytes on disk, and more than any memory when they are read."""
    folder = copy(store, tmp_path)
    (folder / name).touch()
    os.truncate(folder / name, 1 << 40)
    with pytest.raises(ConfigError, match=r"is damaged \(it has more than 256 MiB\)"):
        open_store(folder)


def test_more_documents_than_memory_are_one_sentence(
    store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(store, tmp_path)
    tables = json.loads((folder / INDEX).read_bytes())
    tables["shards"][0]["num_documents"] = 1 << 42
    (folder / INDEX).write_text(json.dumps(tables))
    os.truncate(folder / f"{tables['shards'][0]['name']}.ends", 1 << 43)
    capsys.readouterr()
    assert main(["show", str(folder)]) == ConfigError.exit_code
    assert "Traceback" not in (said := capsys.readouterr().err)
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("text", ["[1]", '{"train-00000": 1}', '{"train-00000": {"path": 1, "first_token": 0}}',
    '{"train-00000": {"path": "train-00000.bin", "first_token": -10}}', "[" * 200_000,
    '{"train-00000": {"path": "a", "first_token": "0"}}', '{"train-00000": {"path": "a"}}'])  # fmt: skip
def test_wrong_paths_are_refused(text: str, store: TokenStore, tmp_path: Path) -> None:
    folder = copy(store, tmp_path)
    (folder / PATHS).write_text(text)
    with pytest.raises(ConfigError, match=r"paths\.json is damaged"):
        open_store(folder)


def show(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What `dilocoxd data show` refuses with."""
    assert main(["show", *options, str(folder)]) == 78
    return capsys.readouterr().err


def test_document_ends_that_are_none_are_refused(
    store: TokenStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(store, tmp_path)
    path = folder / "train-00000.ends"
    for data in (os.urandom(path.stat().st_size), b"\xff" * path.stat().st_size):
        path.write_bytes(data)
        assert "train-00000.ends is not what it was" in show(folder, capsys)
    path.unlink()
    assert "train-00000.ends is missing" in show(folder, capsys, "--check")


@pytest.mark.parametrize("length", ["0", "-5"])
def test_samples_without_tokens_are_refused(length: str, store: TokenStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"--seq-len {length}:" in show(store.directory, capsys, "--seq-len", length)


@pytest.mark.parametrize("part", ["nan", "-1", "1", "inf"])
@pytest.mark.parametrize("command", ["pack", "adopt"])
def test_held_out_part_that_is_none_is_refused(
    command: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--tokenizer", str(tmp_path / "none"), f"--held-out={part}", str(tmp_path / "a.bin")]
    assert main([command, *options, str(tmp_path / "out")]) == 78
    assert "give a number from 0 to below 1" in capsys.readouterr().err


def test_line_that_nests_too_deep_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "deep.jsonl").write_text('{"text": "good"}\n' + "[" * 200_000 + "\n")
    with pytest.raises(ConfigError, match=r"deep\.jsonl, line 2: not JSON"):
        packed(tmp_path, [tmp_path / "deep.jsonl"])


def test_table_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    table = pyarrow.table([["a"], ["b"]], names=["text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="2 columns are called 'text'"):
        packed(tmp_path, [tmp_path / "a.parquet"])


def test_token_that_the_vocabulary_does_not_have_is_named(store: TokenStore, tmp_path: Path) -> None:
    folder = copy(store, tmp_path)
    live = open_store(folder)
    good = live.train.samples(np.array([3]), 32)
    with (folder / "train-00000.bin").open("r+b") as file:
        file.seek(2 * 32 * 4 + 20)
        file.write(b"\xff\xff")
    assert live.train.samples(np.array([3]), 32).tolist() == good.tolist()
    with pytest.raises(ConfigError, match=r"train-00000\.bin is not what it was .* from 128 on .* size 301"):
        live.train.samples(np.array([4]), 32)


@pytest.mark.parametrize("size", [0, 100])
def test_shard_that_is_cut_off_while_it_is_read_is_named(size: int, store: TokenStore, tmp_path: Path) -> None:
    folder = copy(store, tmp_path)
    part = open_store(folder).train
    part.samples(np.array([0]), 8)
    os.truncate(folder / "train-00000.bin", size)
    with pytest.raises(ConfigError, match=r"train-00000\.bin became shorter while it was read"):
        part.samples(np.array([0]), 8)
