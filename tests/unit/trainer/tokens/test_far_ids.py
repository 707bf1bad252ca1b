"""Tokenizers with ids far above the number of their tokens: the largest id decides on the type and the vocabulary."""

import json
from pathlib import Path

import numpy as np
import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.data import DataConfig, TokenizerConfig, prepare
from dilocoxd.trainer.tokens.adopt import AdoptOptions, adopt
from dilocoxd.trainer.tokens.store import TRAIN, open_store
from tests.unit.trainer.tokens.shard_ids import ids_of
from tests.unit.trainer.tokens.texts import packed, write_lines, write_tokenizer

FAR = 70_000


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder in which the end token has the id FAR, among 301 tokens."""
    folder = write_tokenizer(tmp_path)
    path = folder / "tokenizer.json"
    table = json.loads(path.read_text())
    vocab = table["model"]["vocab"]
    moved = max(vocab, key=vocab.__getitem__)
    table["added_tokens"] = [one for one in table["added_tokens"] if one["content"] != "<eos>"]
    vocab[moved], vocab["<eos>"] = FAR - 1, FAR
    path.write_text(json.dumps(table))
    return folder


def test_packing_takes_the_largest_id(tmp_path: Path, tokenizer: Path) -> None:
    store = packed(tmp_path, [write_lines(tmp_path / "a.jsonl")])
    assert (store.index.dtype, store.index.vocab_size, store.index.eos) == ("uint32", FAR + 1, FAR)
    assert FAR in ids_of(store, store.index.of_part(TRAIN)[0], 0, 300)


def test_adopting_takes_the_largest_id(tmp_path: Path, tokenizer: Path) -> None:
    np.array([1, 2, FAR] * 50, dtype="<u4").tofile(tmp_path / "train.bin")
    options = AdoptOptions(dtype="uint32", eos=FAR, tokenizer=tokenizer)
    adopt([tmp_path / "train.bin"], tmp_path / "store", options, lambda done, total: None)
    assert open_store(tmp_path / "store").index.vocab_size == FAR + 1


def test_a_model_with_fewer_ids_is_refused_before_the_text_is_cut(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.txt").write_text("Document 1 says something.\n" * 200)
    config = TokenizerConfig(vocab_size=400, is_given=True, path=str(tokenizer))
    with pytest.raises(ConfigError, match=f"has {FAR + 1} tokens, model.vocab_size is 400"):
        prepare(DataConfig(f"text:{tmp_path / 'a.txt'}"), config, tmp_path / "cache", lambda _: None)
