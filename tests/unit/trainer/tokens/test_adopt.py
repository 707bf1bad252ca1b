"""Adopting token files of others: the same ids, where they are, with their documents."""

import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens.adopt import AdoptOptions, adopt
from dilocoxd.trainer.tokens.describe import check_hashes
from dilocoxd.trainer.tokens.store import HELD, TRAIN, TokenStore, open_store
from tests.unit.trainer.tokens.shard_ids import ids_of

EOS = 0
LENGTHS = [5, 9, 3, 12, 7, 30, 4, 8, 11, 6]


def tokens() -> np.ndarray:  # type: ignore[type-arg]
    rng = np.random.default_rng(3)
    return np.concatenate([np.append(rng.integers(1, 200, n - 1), EOS) for n in LENGTHS])


def adopted(folder: Path, path: Path, options: AdoptOptions) -> TokenStore:
    adopt([path], folder / "store", options, lambda done, total: None)
    return open_store(folder / "store")


def read_all(store: TokenStore, part: str) -> list[int]:
    return [int(token) for shard in store.index.of_part(part) for token in ids_of(store, shard, 0, shard.num_tokens)]


def write_nanogpt(folder: Path) -> Path:
    tokens().astype("<u2").tofile(folder / "train.bin")
    return folder / "train.bin"


def write_megatron(folder: Path) -> Path:
    tokens().astype("<i4").tofile(folder / "text_document.bin")
    lengths = np.array(LENGTHS, dtype="<i4")
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * 4
    documents = np.arange(len(LENGTHS) + 1, dtype="<i8")
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 4, len(LENGTHS), len(documents))
    data = head + lengths.tobytes() + pointers.tobytes() + documents.tobytes()
    (folder / "text_document.idx").write_bytes(data)
    return folder / "text_document.bin"


@pytest.mark.parametrize("write", [write_nanogpt, write_megatron])
def test_tokens_are_read_where_they_are(tmp_path: Path, write: object) -> None:
    assert callable(write)
    path = write(tmp_path)
    store = adopted(tmp_path, path, AdoptOptions(vocab_size=200, eos=EOS, held_fraction=0.1))
    assert read_all(store, TRAIN) + read_all(store, HELD) == tokens().tolist()
    ends = [store.ends(shard).tolist() for shard in store.index.shards]
    assert ends == [np.cumsum(LENGTHS[:-1]).tolist(), LENGTHS[-1:]]
    assert list(check_hashes(store))
    assert not list((tmp_path / "store").glob("*.bin"))


def test_token_below_zero_is_named(tmp_path: Path) -> None:
    path = write_megatron(tmp_path)
    store = adopted(tmp_path, path, AdoptOptions(vocab_size=200, eos=EOS))
    with path.open("r+b") as file:
        file.seek(4 * 10)
        file.write(struct.pack("<i", -1))
    store.train.samples(np.array([0]), 8)
    with pytest.raises(ConfigError, match=r"text_document\.bin is not what it was .* from 8 on .* size 200"):
        store.train.samples(np.array([1]), 8)


def test_files_for_validation_are_held_out_whole(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    tokens()[:17].astype("<u2").tofile(tmp_path / "val.bin")
    store = adopted(tmp_path, path, AdoptOptions(vocab_size=200, eos=EOS, held=(tmp_path / "val.bin",)))
    assert read_all(store, TRAIN) == tokens().tolist()
    assert read_all(store, HELD) == tokens()[:17].tolist()


def test_files_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    with pytest.raises(ConfigError, match="not below the vocabulary's size 100"):
        adopted(tmp_path, path, AdoptOptions(vocab_size=100))
    with pytest.raises(ConfigError, match="--vocab-size is needed"):
        adopted(tmp_path, path, AdoptOptions())
    with pytest.raises(ConfigError, match="cannot be adopted"):
        adopted(tmp_path, tmp_path / "none.bin", AdoptOptions(vocab_size=200))
    megatron = write_megatron(tmp_path)
    megatron.write_bytes(megatron.read_bytes()[:-40])
    with pytest.raises(ConfigError, match="names 95 tokens, the file has 85"):
        adopted(tmp_path, megatron, AdoptOptions(vocab_size=200))
    (tmp_path / "text_document.idx").write_bytes(b"no index")
    with pytest.raises(ConfigError, match="cannot be adopted"):
        adopted(tmp_path, megatron, AdoptOptions(vocab_size=200))


def test_folder_with_other_files_is_not_adopted_into(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    (tmp_path / "store").mkdir()
    for name in ("tokenizer.json", "paths.json"):
        (tmp_path / "store" / name).write_text("mine")
    with pytest.raises(ConfigError, match="has other files in it"):
        adopted(tmp_path, path, AdoptOptions(vocab_size=200, eos=EOS))
    assert {one.read_text() for one in (tmp_path / "store").iterdir()} == {"mine"}


def test_refused_adopting_leaves_nothing_and_its_repetition_works(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    (tmp_path / "bad.bin").write_bytes(b"\xff" * 40)
    (tmp_path / "store").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="token 65535 is not below"):
        adopt([path, tmp_path / "bad.bin"], tmp_path / "store", AdoptOptions(vocab_size=200), lambda a, b: None)
    assert sorted(tmp_path.rglob("*")) == before
    assert (
        read_all(adopted(tmp_path, path, AdoptOptions(vocab_size=200, held_fraction=0.0)), TRAIN) == tokens().tolist()
    )
    assert not list(tmp_path.glob(".store*"))


def test_what_a_killed_adopting_left_is_cleared_away(tmp_path: Path) -> None:
    path = write_nanogpt(tmp_path)
    command = (
        "import os, signal; from pathlib import Path; from dilocoxd.trainer.tokens import adopt\n"
        "adopt.open_store = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"adopt.adopt([Path({str(path)!r})], Path({str(tmp_path / 'store')!r}),"
        f" adopt.AdoptOptions(vocab_size=200, eos={EOS}), lambda done, total: None)"
    )
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    adopted(tmp_path, path, AdoptOptions(vocab_size=200, eos=EOS))
    assert {one.name for one in tmp_path.iterdir()} == {path.name, "store"}


@pytest.mark.parametrize("documents", [[0, 99], [-7, 10], [0, 10, 5, 10]], ids=["beyond", "below zero", "backwards"])
def test_index_with_documents_that_are_not_there_is_refused(documents: list[int], tmp_path: Path) -> None:
    path = write_megatron(tmp_path)
    data = path.with_suffix(".idx").read_bytes()
    head = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 4, len(LENGTHS), len(documents))
    body = data[len(head) : len(head) + 12 * len(LENGTHS)]
    path.with_suffix(".idx").write_bytes(head + body + np.asarray(documents, "<i8").tobytes())
    with pytest.raises(ConfigError, match=r"cannot be adopted .* names"):
        adopted(tmp_path, path, AdoptOptions(vocab_size=200))
