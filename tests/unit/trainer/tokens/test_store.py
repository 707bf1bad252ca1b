"""Reading a store: windows over all shards, damage refused, memory that does not grow with the store."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens import store as tokens_store
from dilocoxd.trainer.tokens.describe import check_hashes, describe, text_lines
from dilocoxd.trainer.tokens.store import HELD, INDEX, TRAIN, ShardInfo, StoreIndex, TokenStore, open_store
from tests.unit.trainer.tokens.texts import DOCUMENTS, packed, write_lines, write_tokenizer


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    write_tokenizer(tmp_path)
    half = len(DOCUMENTS) // 2
    files = [write_lines(tmp_path / "a.jsonl", DOCUMENTS[:half]), write_lines(tmp_path / "b.jsonl", DOCUMENTS[half:])]
    return packed(tmp_path, files)


def test_samples_run_on_from_shard_to_shard(store: TokenStore) -> None:
    seq_len = 32
    shards = store.index.of_part(TRAIN)
    tokens = np.concatenate([np.fromfile(store.place(shard).path, dtype=store.index.dtype) for shard in shards])
    expected = [tokens[start : start + seq_len + 1] for start in range(0, len(tokens) - seq_len, seq_len)]
    assert len(shards) == 2
    assert store.train.num_samples(seq_len) == len(expected)
    assert store.train.num_left_over(seq_len) == len(tokens) - 1 - seq_len * len(expected)
    for order in (
        np.arange(len(expected)),
        np.arange(len(expected))[::-1],
        np.array([0]),
        np.arange(len(expected)) % 3,
    ):
        assert np.array_equal(store.train.samples(order, seq_len), np.stack(expected)[order])


def test_files_shorter_than_a_sample_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a shard; a sample may run over several of them, and more shards than may be mapped at a time."""
    monkeypatch.setattr(tokens_store, "_MAPS_MAX", 3)
    write_tokenizer(tmp_path)
    (tmp_path / "in").mkdir()
    for number in range(20):
        (tmp_path / "in" / f"{number:02d}.txt").write_text(f"The file with number {number}.")
    store = packed(tmp_path, [tmp_path / "in"], held=0.0)
    seq_len, part = 64, store.train
    assert max(shard.num_tokens for shard in store.index.shards) < seq_len
    every = np.arange(part.num_samples(seq_len))
    windows = part.samples(every, seq_len)
    read = np.concatenate([windows[:, :-1].reshape(-1), windows[-1, -1:]])
    tokens = np.concatenate([np.fromfile(store.place(s).path, dtype=store.index.dtype) for s in store.index.shards])
    assert np.array_equal(read, tokens[: len(read)])
    assert len(tokens) - len(read) == part.num_left_over(seq_len) < seq_len
    assert (part.answered(every, seq_len) == np.ones_like(windows)).all()
    last = describe(store, seq_len)[TRAIN]
    assert isinstance(last, dict)
    assert last["left_over"] == len(tokens) - len(read)
    assert describe(store, 10**6)[TRAIN] == {**last, "samples": 0, "left_over": len(tokens)}


def test_damage_is_found_and_named(store: TokenStore) -> None:
    shard = store.index.of_part(TRAIN)[0]
    path = store.place(shard).path
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=f"{path.name} is not what it was"):
        list(check_hashes(store))
    path.write_bytes(data[:-2])
    with pytest.raises(ConfigError, match="copy or pack it again"):
        open_store(store.directory)
    path.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        open_store(store.directory)
    (store.directory / INDEX).write_text("{}")
    with pytest.raises(ConfigError, match="is damaged"):
        open_store(store.directory)


def test_description_counts_documents_and_lengths(store: TokenStore) -> None:
    assert list(check_hashes(store))
    found = describe(store, 32)
    train, held = found[TRAIN], found[HELD]
    lengths = found["lengths"]
    assert isinstance(train, dict)
    assert isinstance(held, dict)
    assert isinstance(lengths, dict)
    assert train["documents"] + held["documents"] == len(DOCUMENTS)
    assert sum(lengths.values()) == train["documents"]
    assert any(line.startswith("training") and "samples of 32" in line for line in text_lines(found))


RSS = """
import re, sys
import numpy as np
from pathlib import Path
from dilocoxd.trainer.tokens import open_store

def rss():
    text = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s+(\\d+)", text)[1]) >> 10

part = open_store(Path(sys.argv[1])).train
num = part.num_samples(1024)
rng = np.random.default_rng(1)
part.samples(np.array([0]), 1024)
before, most = rss(), 0
for indices in rng.integers(0, num, (400, 500)):
    part.samples(indices, 1024)
    most = max(most, rss())
print(num, max(most, rss()) - before)
"""
GROWTH_MIB_MAX = 64
"""Twice what is kept mapped at a time; the store is 2 GiB."""


def write_sparse(folder: Path, num_tokens: int) -> None:
    """A store of zeros that takes no disk space."""
    folder.mkdir()
    with (folder / "train-00000.bin").open("wb") as file:
        file.truncate(2 * num_tokens)
    np.asarray([num_tokens], dtype="<i8").tofile(folder / "train-00000.ends")
    shard = ShardInfo("train-00000", num_tokens, 1, "0" * 64, "0" * 64)
    (folder / INDEX).write_bytes(StoreIndex("uint16", 1000, None, "", (shard,)).canonical_bytes())


def test_memory_stays_flat_over_two_gibibytes(tmp_path: Path) -> None:
    write_sparse(tmp_path / "store", 1 << 30)
    done = subprocess.run(
        [sys.executable, "-c", RSS, str(tmp_path / "store")], capture_output=True, text=True, check=True
    )
    num_samples, growth_mib = map(int, done.stdout.split())
    assert num_samples == (1 << 20) - 1
    assert growth_mib < GROWTH_MIB_MAX


def test_index_names_the_content(store: TokenStore) -> None:
    tables = json.loads((store.directory / INDEX).read_bytes())
    assert store.index.sha256() == open_store(store.directory).index.sha256()
    assert tables["shards"][0]["name"] == "train-00000"
