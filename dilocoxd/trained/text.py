"""Text from a shared state, as it comes: whole characters as soon as they are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Protocol

from dilocoxd.errors import ConfigError
from dilocoxd.trained.choose import Tell
from dilocoxd.trained.found import StoredRun
from dilocoxd.trained.load import load_model
from dilocoxd.trained.tokenizer import TokenizerFiles
from dilocoxd.trainer.generate import Sampling, sampled
from dilocoxd.trainer.tokens.limits import TokenizerApart
from dilocoxd.trainer.tokens.vocabulary import require_known

__all__ = ["Sampling", "generate"]

_HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_KEPT = 16
"""Tokens before a new one that may change how it is decoded: a space at the beginning, bytes of one character."""


def generate(
    run: StoredRun, number: int | None, files: TokenizerFiles, prompts: tuple[str, ...], sampling: Sampling, tell: Tell
) -> Iterator[tuple[int, str]]:
    """(number of the prompt, next piece of its text), prompt by prompt. Ends at the tokenizer's end-of-text token.

    Raises ConfigError for a prompt that is no text or has no token, for a tokenizer that is none or not the model's,
    and as `load_model`.
    """
    for prompt in prompts:
        if not _is_utf8(prompt):
            raise ConfigError(f"prompt {prompt!r} is not in UTF-8; give it in UTF-8")
    with TokenizerApart(files.path) as tokenizer:
        starts = [tokenizer.encode(prompt) for prompt in prompts]
        require_known(chain.from_iterable(starts), run.manifest.model.vocab_size, files.path)
        for prompt, ids in zip(prompts, starts, strict=True):
            if not ids:
                raise ConfigError(f"prompt {prompt!r} has no token; give at least a character")
        end = files.special().eos
        stops = replace(sampling, stop_ids=frozenset() if end is None else frozenset({end}))
        model, _ = load_model(run, number, tell)
        for index, ids in enumerate(starts):
            for piece in pieces(tokenizer, ids, sampled(model, ids, run.manifest.model.seq_len, stops)):
                yield index, piece


def _is_utf8(prompt: str) -> bool:
    """A byte of another encoding becomes half of a surrogate pair where Python reads the command line."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class Decoder(Protocol):
    """What makes a text of ids."""

    def decode(self, ids: list[int]) -> str:
        """Their text."""


def pieces(tokenizer: Decoder, start: list[int], tokens: Iterable[int]) -> Iterator[str]:
    """What `tokens` add to the text of `start`, as soon as it ends with a whole character."""
    known, told = list(start), tokenizer.decode(start)
    for token in tokens:
        known.append(token)
        text = tokenizer.decode(known)
        if not text.endswith(_HALF_CHARACTER):
            yield text[len(told) :]
            known = known[-_KEPT:]  # or each token of a long text would decode all of it again
            told = tokenizer.decode(known)
