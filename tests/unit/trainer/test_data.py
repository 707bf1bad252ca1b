"""Data of a run: the same tokens on every site, nothing held out is trained on, any position without history."""

import ast
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.data import DataConfig, PreparedData, TokenizerConfig, prepare
from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.data.corpora import _dictionary_paragraphs, read_corpus, statements_below
from dilocoxd.trainer.data.order import BatchOrder
from dilocoxd.trainer.data.prepare import FORMAT, _key, unigram_entropy
from dilocoxd.trainer.data.split import chunks_of, hold_out
from dilocoxd.trainer.main import check_text, text_number
from dilocoxd.trainer.prepare import main
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer, token_dtype, tokenizer_digest

SENTENCES = [f"The {a} of a {b} number {i} is known to {c}.\n" for i in range(60) for a in ("sum", "root", "size")
             for b in ("prime", "large") for c in ("all", "few people", "nobody at all")]  # fmt: skip
TEXT = "".join(SENTENCES)


def quiet(_: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def prepared_from(corpus: Path, cache: Path, *, sha256: str = "", tokenizer_sha256: str = "") -> PreparedData:
    return prepare(
        DataConfig(f"text:{corpus}", validation_fraction=0.1, sha256=sha256),
        TokenizerConfig(vocab_size=300, sha256=tokenizer_sha256),
        cache,
        quiet,
    )


def test_two_machines_prepare_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    first = prepared_from(corpus, tmp_path / "one")
    second = prepared_from(corpus, tmp_path / "two")
    assert first.data_sha256 == second.data_sha256
    assert first.tokenizer_sha256 == second.tokenizer_sha256
    assert hashlib.sha256((first.directory / "tokens.bin").read_bytes()).hexdigest() == first.data_sha256


def test_tokenizer_does_not_depend_on_the_number_of_threads() -> None:
    script = (
        "from dilocoxd.trainer.data.bpe import *; from dilocoxd.trainer.tokens.vocabulary import *; import sys; "
        "print(tokenizer_digest(train_tokenizer(sys.stdin.read().splitlines(keepends=True), 300)))"
    )
    digests = set()
    for threads, parallel in (("1", "false"), ("2", "true"), ("4", "true")):
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=TEXT,
            capture_output=True,
            text=True,
            check=True,
            env={"RAYON_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": parallel, "PYTHONPATH": ":".join(sys.path)},
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_second_call_reads_the_cache(corpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    prepared_from(corpus, tmp_path)
    prepare(
        DataConfig(f"text:{corpus}", validation_fraction=0.1), TokenizerConfig(vocab_size=300), tmp_path, said.append
    )
    assert said == []


def test_damaged_cache_is_built_again(corpus: Path, tmp_path: Path) -> None:
    first = prepared_from(corpus, tmp_path)
    with (first.directory / "tokens.bin").open("ab") as file:
        file.write(b"x")
    (first.directory / "index.json").write_text("{", encoding="utf-8")
    assert prepared_from(corpus, tmp_path) == first
    assert (first.directory / "tokens.bin").stat().st_size == 2 * (first.num_train_tokens + first.num_validation_tokens)


def test_changed_text_file_is_another_cache_entry(corpus: Path, tmp_path: Path) -> None:
    first = prepared_from(corpus, tmp_path)
    corpus.write_text(TEXT + "One more line about sums.\n", encoding="utf-8")
    assert prepared_from(corpus, tmp_path).directory != first.directory


def test_other_hashes_than_the_manifest_are_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.sha256 of the run is ab"):
        prepared_from(corpus, tmp_path, sha256="ab" * 32)
    with pytest.raises(ConfigError, match=r"tokenizer\.sha256 of the run is ab"):
        prepared_from(corpus, tmp_path, tokenizer_sha256="ab" * 32)


def test_manifest_hashes_of_the_first_site_are_accepted(corpus: Path, tmp_path: Path) -> None:
    first = prepared_from(corpus, tmp_path)
    prepared_from(corpus, tmp_path / "other", sha256=first.data_sha256, tokenizer_sha256=first.tokenizer_sha256)


def test_tokens_decode_to_the_text(corpus: Path, tmp_path: Path) -> None:
    prepared = prepared_from(corpus, tmp_path)
    tokenizer = train_tokenizer(hold_out(chunks_of(TEXT, 0), 0.1)[0], 300)
    assert tokenizer_digest(tokenizer) == prepared.tokenizer_sha256
    train, held = hold_out(chunks_of(TEXT, 0), 0.1)
    assert tokenizer.decode(prepared.train_tokens().tolist()) == "".join(train)
    assert tokenizer.decode(prepared.validation_tokens().tolist()) == "".join(held)


def test_tokenizer_that_cuts_and_pads_loses_no_text_and_keeps_its_hash(corpus: Path, tmp_path: Path) -> None:
    """Some tokenizer.json say how long the texts of their own model were."""
    tokenizer = train_tokenizer(SENTENCES, 300)
    found = []
    for name in ("plain", "cutting"):
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        given = TokenizerConfig(vocab_size=300, is_given=True, path=str(tmp_path / name))
        found.append((prepare(DataConfig(f"text:{corpus}"), given, tmp_path, quiet), tokenizer_digest(tokenizer)))
        tokenizer.enable_truncation(8)
        tokenizer.enable_padding(length=16)
    (plain, _), (cutting, digest) = found
    assert cutting.num_train_tokens == plain.num_train_tokens
    assert cutting.data_sha256 == plain.data_sha256
    assert cutting.tokenizer_sha256 == digest != plain.tokenizer_sha256
    assert tokenizer_digest(load_tokenizer(cutting.directory)) == digest


def test_folder_that_was_cut_is_not_used_again(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(SENTENCES, 300)
    keys = []
    for _ in range(2):
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        parts = [FORMAT, "gcide", 1000, 0.5, 300, tokenizer_digest(tokenizer)]
        before = f"gcide-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"
        given = TokenizerConfig(vocab_size=300, is_given=True, path=str(tmp_path))
        keys.append(_key(DataConfig("gcide", 1000, 0.5), given) == before)
        tokenizer.enable_truncation(8)
    assert keys == [True, False]


def test_held_out_chunks_are_a_tenth_from_everywhere_and_nothing_is_lost() -> None:
    chunks = chunks_of(TEXT, 0)
    train, held = hold_out(chunks, 0.1)
    assert sorted(train + held) == sorted(chunks)
    assert "".join(chunks) == TEXT
    assert 0.05 < sum(map(len, held)) / len(TEXT) < 0.15
    assert not set(train) & set(held)


def test_long_text_is_thinned_evenly() -> None:
    chunks = chunks_of(TEXT, len(TEXT) // 4)
    assert sum(map(len, chunks)) == pytest.approx(len(TEXT) / 4, rel=0.2)
    assert TEXT.index(chunks[-1]) > len(TEXT) * 0.7


def test_unigram_entropy_of_equally_frequent_tokens_is_the_log_of_their_number() -> None:
    assert unigram_entropy(np.arange(64, dtype=np.uint16).repeat(3)) == pytest.approx(np.log(64))


@pytest.mark.parametrize(("vocab_size", "expected"), [(65536, np.uint16), (65537, np.uint32)])
def test_token_type_holds_the_largest_id(vocab_size: int, expected: type) -> None:
    assert token_dtype(vocab_size) is expected


def order_of(prepared: PreparedData, peer: str = "peer-a", seed: int = 7) -> BatchOrder:
    return BatchOrder(prepared, 16, seed=seed, peer=peer)


def test_any_position_is_the_same_without_history(corpus: Path, tmp_path: Path) -> None:
    prepared = prepared_from(corpus, tmp_path)
    whole = torch.cat([order_of(prepared).batch(position, 4)[0] for position in (0, 4, 8)])
    assert torch.equal(order_of(prepared).batch(0, 12)[0], whole)
    assert torch.equal(order_of(prepared).batch(8, 4)[0], whole[8:])


@pytest.mark.parametrize("make", [lambda p: order_of(p, peer="peer-b"), lambda p: order_of(p, seed=8)])
def test_peers_and_seeds_read_other_text(
    corpus: Path, tmp_path: Path, make: Callable[[PreparedData], BatchOrder]
) -> None:
    prepared = prepared_from(corpus, tmp_path)
    assert not np.array_equal(make(prepared).offsets(0, 32), order_of(prepared).offsets(0, 32))


def test_order_is_pinned() -> None:
    # Another order would make a restarted site read another text than the one it would have read.
    order = BatchOrder.__new__(BatchOrder)
    order._train = np.zeros(1_000_000, dtype=np.uint16)
    order._seq_len = 64
    order._key = hashlib.blake2b(b"7/peer-a", digest_size=32).digest()
    assert order.offsets(5, 3).tolist() == [889886, 178542, 242221]


def test_targets_are_the_next_tokens(corpus: Path, tmp_path: Path) -> None:
    ids, targets = order_of(prepared_from(corpus, tmp_path)).batch(3, 2)
    assert torch.equal(ids[:, 1:], targets[:, :-1])
    assert ids.shape == (2, 16)


def test_validation_batches_are_the_same_for_all_sites(corpus: Path, tmp_path: Path) -> None:
    prepared = prepared_from(corpus, tmp_path)
    first = order_of(prepared, peer="peer-a").validation_batches(10, 4)
    second = order_of(prepared, peer="peer-b").validation_batches(10, 4)
    assert len(first) == 2
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))


class SumWith:
    """Over two ranks: the caller's, and one that reads `other`."""

    def __init__(self, other: BatchOrder) -> None:
        self._other = other

    def sum(self, values: Sequence[float]) -> list[float]:
        return [value + text_number(self._other) for value in values]


def test_machines_of_a_site_that_read_two_texts_do_not_train(corpus: Path, tmp_path: Path) -> None:
    one = order_of(prepared_from(corpus, tmp_path / "one"))
    check_text(SumWith(order_of(prepared_from(corpus, tmp_path / "two"))), one, 2)
    corpus.write_text(corpus.read_text() + "one more line\n")
    other = order_of(prepared_from(corpus, tmp_path / "two"))
    with pytest.raises(ConfigError, match="do not read the same text"):
        check_text(SumWith(other), one, 2)


def test_corpus_shorter_than_a_window_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fewer than one window"):
        BatchOrder(prepared_from(corpus, tmp_path), 100_000, seed=1, peer="a")


def test_dictionary_becomes_plain_paragraphs() -> None:
    lines = 'Coagulate \\Co*ag"u*late\\, a.\n   To {thicken}.\n   [1913 Webster]\n\nNext word\n'.splitlines(
        keepends=True
    )
    assert list(_dictionary_paragraphs(lines)) == ["Coagulate, a. To thicken.", "Next word"]


@pytest.mark.parametrize("name", ["no-such-corpus", "text:/no/such/file", "/no/such/folder"])
def test_unknown_corpus_names_a_remedy(name: str) -> None:
    with pytest.raises(ConfigError, match=r"choose one of|give a UTF-8 file"):
        read_corpus(name, quiet)


def test_missing_package_tools_name_the_corpora_that_need_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="stdlib"):
        read_corpus("gcide", quiet)


def test_english_without_package_tools_is_the_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    text, source = read_corpus("english", said.append)
    assert source == "stdlib"
    assert len(text) > 500_000
    assert "apt-get is not on this machine" in said[-1] and "; taking corpus stdlib instead" in said[-1]


def test_docstrings_are_found_in_the_order_of_all_nodes() -> None:
    source = """
if a:
    def in_if(): ...
else:
    class InElse:
        async def method(self):
            def inner(): ...
try:
    def in_try(): ...
except E:
    def in_except(): ...
else:
    def in_else(): ...
finally:
    def in_finally(): ...
match f(lambda: 1):
    case [1, *_]:
        def in_case(): ...
for _ in b:
    with c:
        while d:
            def in_while(): ...
@decorated(lambda x: [y for y in x])
def last(of=lambda: 2): ...
"""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(source)
    expected = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    assert len(expected) == 12
    assert [node for node in statements_below(tree) if isinstance(node, kinds)] == expected


@pytest.mark.parametrize("size", [100, 5000])
def test_impossible_vocabulary_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=r"model\.vocab_size"):
        train_tokenizer(["a few words only"], size)


def test_command_line_reports_what_a_manifest_needs(corpus: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dilocoxd.trainer.prepare",
            "--corpus",
            str(corpus),
            "--vocab-size",
            "300",
            "--cache",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["data_sha256"] == prepare(DataConfig(str(corpus)), TokenizerConfig(300), tmp_path, quiet).data_sha256
    assert "training a tokenizer" in done.stderr


def test_command_line_ends_with_78_for_what_the_operator_must_change() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dilocoxd.trainer.prepare", "--corpus", "nothing"], capture_output=True, text=True
    )
    assert done.returncode == ConfigError.exit_code
    assert "choose one of" in done.stderr


def test_command_line_reads_a_manifest(corpus: Path, tmp_path: Path) -> None:
    run_toml = tmp_path / "run.toml"
    run_toml.write_text(
        f'''
[run]
name = "test"
[model]
vocab_size = 300
hidden_size = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
intermediate_size = 16
seq_len = 12
[data]
corpus = "{corpus}"
[inner]
lr = 1e-3
total_steps = 10
batch_sequences = 4
microbatches = 2
[strategy]
inner_steps = 4
''',
        encoding="utf-8",
    )
    assert main(["--run-toml", str(run_toml), "--cache", str(tmp_path / "cache")]) == 0
    first = prepare(DataConfig(str(corpus)), TokenizerConfig(300), tmp_path / "cache", quiet)
    assert first.directory.is_dir()
