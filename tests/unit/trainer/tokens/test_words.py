"""The fast way gives the tokens of the library, for any text, or is not taken."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.tokens import words
from dilocoxd.trainer.tokens.words import WordEncoder
from tests.unit.trainer.tokens.texts import DOCUMENTS

SOURCE = (Path(os.__file__).parent / "argparse.py").read_text()
PARTS = st.sampled_from(
    ["don't", "'S", "'ll", "<eos>", " x1y22", "\n\n  ", "\t", "\x0b\x1c", "_a", "--", "caf\xe9", "\x00"]
)
TEXTS = st.lists(
    st.one_of(PARTS, st.text(max_size=8), st.text(st.characters(max_codepoint=127), max_size=12)), max_size=12
)


@cache
def tokenizer() -> Any:
    found = train_tokenizer([SOURCE, *DOCUMENTS], 400)
    found.add_special_tokens(["<eos>"])
    return found


def by_library(used: Any, texts: list[str]) -> list[list[int]]:
    return [used.encode(text, add_special_tokens=False).ids for text in texts]


def by_words(used: Any, texts: list[str]) -> list[list[int]]:
    return [np.frombuffer(ids, "<u2").tolist() for ids in WordEncoder(used, "uint16").encode(texts)]


@settings(max_examples=400, deadline=None)
@given(parts=TEXTS)
def test_any_text_has_the_librarys_tokens(parts: list[str]) -> None:
    texts = ["".join(parts), *parts]
    assert by_words(tokenizer(), texts) == by_library(tokenizer(), texts)


def test_long_texts_have_the_librarys_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_WORDS_MAX", 300)
    texts = [SOURCE[start : start + 5000] for start in range(0, len(SOURCE), 5000)]
    assert by_words(tokenizer(), texts) == by_library(tokenizer(), texts)


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
