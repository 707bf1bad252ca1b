"""The tokenizer of a run: byte-level BPE trained on the run's own corpus, the same merges on every site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dilocoxd.errors import ConfigError

VOCAB_SIZE_MIN: Final = 260
_TRAINING_CHARS_MAX: Final = 4 << 20
"""Merges of a few thousand words settle on far less text than the model trains on."""


def train_tokenizer(chunks: Sequence[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE of exactly ``vocab_size`` tokens. Raises ConfigError if the text cannot give that many."""
    if vocab_size < VOCAB_SIZE_MIN:
        raise ConfigError(f"model.vocab_size = {vocab_size} is too small: use at least {VOCAB_SIZE_MIN}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        # All 256 bytes are tokens, so any text can be encoded and no unknown token exists.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_evenly(chunks), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ConfigError(
            f"the corpus gives only {tokenizer.get_vocab_size()} tokens, model.vocab_size = {vocab_size} asks for more:"
            " lower it or use a larger corpus"
        )
    return tokenizer


def _evenly(chunks: Sequence[str]) -> list[str]:
    total = sum(len(chunk) for chunk in chunks)
    stride = max(1, -(-total // _TRAINING_CHARS_MAX))
    return list(chunks[::stride])
