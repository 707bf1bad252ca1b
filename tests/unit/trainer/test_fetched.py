"""Text from a peer: what is not the run's is refused before it is read, and nothing of it stays."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from dilocoxd.errors import ConfigError
from dilocoxd.store.prepared import FETCHED, TOKENIZER, TOKENS
from dilocoxd.trainer.data import DataConfig, TokenizerConfig, fetched as module
from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.data.fetched import accept
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer, tokenizer_digest

VOCAB = 300
TOKEN_IDS = (np.arange(2000) % VOCAB).astype("<u2").tobytes()
TRAINED = train_tokenizer([f'A "quoted" line {n} \\ of words.\n' for n in range(99)], VOCAB)
DATA = DataConfig(validation_fraction=0.1, sha256=hashlib.sha256(TOKEN_IDS).hexdigest())
HOSTILE = {
    "no vocabulary": b'{"model":{"type":"BPE"}}',
    "deep": b'{"model":' + b"[" * 200_000,
    "far id": b'{"model":{"type":"BPE","vocab":{"a":2147483648},"merges":[]}}',
    "far added id": b'{"added_tokens":[{"id":4294967295}],"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}',
    "id is a text": b'{"model":{"type":"BPE","vocab":{"a":"b"},"merges":[]}}',
    "no table": b"[]",
    "no text": b"\xff\xfe",
}


def fetched(folder: Path, tokenizer: bytes) -> Path:
    folder.mkdir()
    (folder / TOKENS).write_bytes(TOKEN_IDS)
    (folder / TOKENIZER).write_bytes(tokenizer)
    (folder / FETCHED).write_text(json.dumps({"num_train_tokens": 1900, "num_validation_tokens": 100}))
    return folder


@pytest.mark.parametrize("label", HOSTILE)
def test_another_tokenizer_is_refused_unread(tmp_path: Path, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_tokenizer", None)
    folder = fetched(tmp_path / ".fetch-a", HOSTILE[label])
    with pytest.raises(ConfigError, match=r"tokenizer\.sha256 of the run"):
        accept(folder, DATA, TokenizerConfig(VOCAB, tokenizer_digest(TRAINED)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_pretty", [True, False])
def test_the_runs_tokenizer_is_taken_with_blanks_or_without(tmp_path: Path, is_pretty: bool) -> None:
    folder = fetched(tmp_path / ".fetch-a", TRAINED.to_str(pretty=is_pretty).encode())
    prepared = accept(folder, DATA, TokenizerConfig(VOCAB, tokenizer_digest(TRAINED)))
    assert tokenizer_digest(load_tokenizer(prepared.tokenizer_path())) == tokenizer_digest(TRAINED)
    assert prepared.num_train_tokens == 1900


def test_a_blank_inside_a_number_does_not_reach_who_reads(tmp_path: Path) -> None:
    spread = TRAINED.to_str().replace(":299", ":2 9 9").encode()
    assert spread != TRAINED.to_str().encode()
    prepared = accept(fetched(tmp_path / ".fetch-a", spread), DATA, TokenizerConfig(VOCAB, tokenizer_digest(TRAINED)))
    assert prepared.tokenizer_path().read_bytes() == TRAINED.to_str().encode()


@pytest.mark.parametrize("label", HOSTILE)
def test_a_given_file_that_is_no_tokenizer_is_one_sentence(tmp_path: Path, label: str) -> None:
    (tmp_path / TOKENIZER).write_bytes(HOSTILE[label])
    with pytest.raises(ConfigError, match=r"tokenizer\.json (is no tokenizer|has a token of id)"):
        load_tokenizer(tmp_path)
