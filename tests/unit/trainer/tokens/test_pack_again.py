"""Packing where another packs or has packed, or is killed: a finished store stays, what is damaged is packed again."""

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from unittest.mock import Mock

import pytest

from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.trainer.tokens.encode import WORK
from dilocoxd.trainer.tokens.pack import PackOptions, pack
from dilocoxd.trainer.tokens.store import INDEX, open_store
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "picture.png").write_bytes(b"PNG")  # told of between the first look at OUT and the lock
    return tmp_path


def test_store_that_another_finished_meanwhile_stays(folder: Path) -> None:
    """The second lists its inputs while the first packs, and then finds that its own cannot be packed."""
    (folder / "in" / "bad.jsonl").write_text("no JSON\n")
    good = write_lines(folder / "good.jsonl")

    def finish(_: str) -> None:
        packed(folder, [good], name="out")

    with pytest.raises(ConfigError, match="is a finished token store"):
        pack([folder / "in"], folder / "out", PackOptions(folder / "tokenizer"), finish, lambda done, total: None)
    store = open_store(folder / "out")
    assert store.index.sha256() == packed(folder, [good]).index.sha256()
    assert not (folder / "out" / WORK).exists()


def test_files_that_came_meanwhile_stay(folder: Path) -> None:
    (folder / "in" / "bad.jsonl").write_text("no JSON\n")

    def put(_: str) -> None:
        (folder / "out").mkdir()
        (folder / "out" / "train-notes.txt").write_text("mine")

    with pytest.raises(ConfigError, match="has other files in it"):
        pack([folder / "in"], folder / "out", PackOptions(folder / "tokenizer"), put, lambda done, total: None)
    assert [path.name for path in (folder / "out").iterdir()] == ["train-notes.txt"]


def unfinished(folder: Path) -> Path:
    """What a killed packing of two files leaves: both pieces are done, the store is not."""
    for name, part in (("a", DOCUMENTS[:100]), ("b", DOCUMENTS[100:])):
        write_lines(folder / "in" / f"{name}.jsonl", part)
    out = folder / "out"

    def stop(done: int, total: int) -> None:
        if done == total:
            raise StoreError("killed")

    with pytest.raises(StoreError, match="killed"):
        pack([folder / "in"], out, PackOptions(folder / "tokenizer", held_fraction=0.1), lambda _: None, stop)
    assert not (out / INDEX).exists()
    return out


@pytest.mark.parametrize("note", [b"", b"[]", b'{"number": 0}', None], ids=["empty", "list", "other", "cut shard"])
def test_damaged_piece_is_packed_again(note: bytes | None, folder: Path) -> None:
    out, said = unfinished(folder), list[str]()
    if note is None:
        (out / "train-00000.bin").write_bytes((out / "train-00000.bin").read_bytes()[:10])
    else:
        (out / WORK / "00000.json").write_bytes(note)
    options = PackOptions(folder / "tokenizer", held_fraction=0.1)
    pack([folder / "in"], out, options, said.append, lambda done, total: None)
    assert "going on: 1 of 2 pieces were packed before" in said
    assert open_store(out).index.sha256() == packed(folder, [folder / "in"]).index.sha256()


def test_shard_that_is_cut_at_the_end_leaves_no_index(folder: Path) -> None:
    out = unfinished(folder)

    def cut(done: int, total: int) -> None:
        (out / "train-00001.ends").write_bytes(b"")

    options = PackOptions(folder / "tokenizer", held_fraction=0.1)
    with pytest.raises(ConfigError, match=r"train-00001\.ends has 0 of \d+ bytes"):
        pack([folder / "in"], out, options, lambda _: None, cut)
    assert not out.exists() or not (out / INDEX).exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_place_that_is_no_folder_is_refused(name: str, folder: Path) -> None:
    (folder / "file").write_text("mine")
    lines = write_lines(folder / "a.jsonl")
    with pytest.raises(ConfigError, match="give another OUT"):
        packed(folder, [lines], name=name)
    assert (folder / "file").read_text() == "mine"


@pytest.mark.parametrize("error", [OSError("handle is closed"), BrokenProcessPool("one ended")])
def test_processes_that_are_killed_while_work_is_given_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What the pool says of it depends on how far it is with breaking: neither is a full disk."""
    monkeypatch.setattr(ProcessPoolExecutor, "submit", Mock(side_effect=error))
    paths = [write_lines(folder / f"{name}.jsonl") for name in "ab"]
    options = PackOptions(folder / "tokenizer", num_processes=2)
    with pytest.raises(StoreError, match=r"a process that packs was killed .* repeat the command, it goes on"):
        pack(paths, folder / "out", options, lambda _: None, lambda done, total: None)
