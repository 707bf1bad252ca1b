"""The fast way gives the tokens of the library, for any text, or is not taken."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.tokens import words
from dilocoxd.trainer.tokens.words import WordEncoder
from tests.unit.trainer.tokens.texts import DOCUMENTS

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
SOURCE = (Path(os.__file__).parent / "argparse.py").read_text()
PARTS = st.sampled_from(
    ["don't", "'S", "'ll", "'Ve", "<eos>", " x1y22", "12345", "\n\n  ", " \n \n",
     ".\n", "\r\n", "\t", "\t(", " (a", "(a",
     "\x0b\x1c", "_a", "--", "caf\xe9", "\u201cso\u201d", " \xe9", "\u0301", "\xa0", " \u2003", "\x00", " ", "\n", "'"]
)  # fmt: skip
TEXTS = st.lists(
    st.one_of(PARTS, st.text(max_size=8), st.text(st.characters(max_codepoint=127), max_size=12)), max_size=12
)


@cache
def tokenizer() -> Any:
    found = train_tokenizer([SOURCE, *DOCUMENTS], 400)
    found.add_special_tokens(["<eos>"])
    return found


def split_like(pattern: str) -> Any:
    """The same merges behind a pattern of Llama 3 or Qwen, with Qwen's NFC."""
    found = Tokenizer.from_str(tokenizer().to_str())
    found.normalizer = normalizers.NFC()
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return found


@cache
def tokenizers_told_apart() -> list[Any]:
    return [tokenizer(), *map(split_like, (LLAMA3, QWEN))]


def by_library(used: Any, texts: list[str]) -> list[list[int]]:
    return [used.encode(text, add_special_tokens=False).ids for text in texts]


def by_words(used: Any, texts: list[str]) -> list[list[int]]:
    return [np.frombuffer(ids, "<u2").tolist() for ids in WordEncoder(used, "uint16").encode(texts)]


@settings(max_examples=300, deadline=None)
@given(parts=TEXTS)
def test_any_text_has_the_librarys_tokens(parts: list[str]) -> None:
    texts = ["x y" * 200 + "".join(parts), "".join(parts), *parts, ""]
    for used in tokenizers_told_apart():
        assert by_words(used, texts) == by_library(used, texts)


@pytest.mark.parametrize("number", range(3))
def test_a_long_text_with_few_foreign_characters_is_looked_up(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used = tokenizers_told_apart()[number]
    text = SOURCE[:9000].replace("'", "\u2019").replace("(e", "(\xe9")
    whole: list[str] = []
    encoder = WordEncoder(used, "uint16")
    library = encoder._by_library
    monkeypatch.setattr(encoder, "_by_library", lambda texts: whole.extend(texts) or library(texts))
    (found,) = encoder.encode([text])
    assert np.frombuffer(found, "<u2").tolist() == by_library(used, [text])[0]
    assert max(map(len, whole)) < 200


@pytest.mark.parametrize("limit", ["_WORDS_MAX", "_WORDS_BYTES_MAX", "_BLOCK_BYTES"])
def test_long_texts_have_the_librarys_tokens(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, limit, 300)
    texts = [SOURCE[start : start + 5000] for start in range(0, len(SOURCE), 5000)]
    for used in tokenizers_told_apart():
        assert by_words(used, texts) == by_library(used, texts)


def test_words_that_share_a_slot_keep_their_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_SLOTS_BITS", 2)
    encoder = WordEncoder(tokenizer(), "uint16")
    for _ in range(2):
        assert [np.frombuffer(ids, "<u2").tolist() for ids in encoder.encode([SOURCE])] == by_library(
            tokenizer(), [SOURCE]
        )


def lower() -> Any:
    found = Tokenizer.from_str(tokenizer().to_str())
    found.normalizer = normalizers.Lowercase()
    return found


def split_at_spaces() -> Any:
    found = Tokenizer.from_str(tokenizer().to_str())
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return found


def with_prefix() -> Any:
    found = Tokenizer.from_str(tokenizer().to_str())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return found


@pytest.mark.parametrize("make", [lower, split_at_spaces, with_prefix])
def test_other_tokenizers_go_through_the_library(make: Any) -> None:
    used = make()
    texts = [*DOCUMENTS[:9], SOURCE]
    assert by_words(used, texts) == by_library(used, texts)
