"""The tokenizer that a store is made with: a tokenizer.json, or a folder with one, as Hugging Face saves it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from tokenizers import Tokenizer

from dilocoxd.config.origin import TOKENIZER_FILE_BYTES_MAX
from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.trainer.tokens.store import TOKENIZER
from dilocoxd.trainer.tokens.tried import fault_of

_END_TOKENS: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
"""Usual names, tried in this order when tokenizer_config.json names none."""
_ADVICE: Final = "give a tokenizer.json or a folder with one"
_ID_MAX: Final = (1 << 24) - 1
"""Far above model.vocab_size, which is at most a million."""


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer at `path`, a tokenizer.json or a folder with one. Raises ConfigError."""
    text = tried_text(path)
    with LibraryRefusal(tokenizer_file(path)):
        return Tokenizer.from_str(text)


def tried_text(path: Path) -> str:
    """The tokenizer.json at `path`, or in that folder. Raises ConfigError.

    Another process reads it first, with limits, where the library does not raise but dies.
    """
    file = tokenizer_file(path)
    try:
        if file.stat().st_size > TOKENIZER_FILE_BYTES_MAX:
            raise ValueError(f"it has more than {TOKENIZER_FILE_BYTES_MAX >> 20} MiB")
        text = file.read_text(encoding="utf-8")
        tables = json.loads(text)
        largest = largest_id(tables)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no tokenizer ({reason_of(error)}); {_ADVICE}") from error
    if largest > _ID_MAX:
        # The library takes memory and time for every id below the largest.
        raise ConfigError(f"{file} has a token of id {largest}, the largest can be {_ID_MAX}; {_ADVICE}")
    if fault := fault_of(text):
        raise ConfigError(f"{file} is no tokenizer ({fault}); {_ADVICE}")
    return text


PANIC: Final = "PanicException"
"""What the library raises, and nobody can import, for what its authors did not think of. It is no Exception."""


def is_of_library(error: type[BaseException] | None) -> bool:
    """Whether it is one of those that the library raises: a bare Exception for whatever it cannot read, or a panic."""
    return error is Exception or (error is not None and error.__name__ == PANIC)


class LibraryRefusal:
    """Exactly what the library raises of the tokenizer in `file` becomes ConfigError."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> Literal[False]:
        if is_of_library(kind):
            raise ConfigError(f"{self._file} is no tokenizer ({error}); {_ADVICE}") from error
        return False


def largest_id(tables: object) -> int:
    """Largest id in the tables of a tokenizer.json, added tokens too. Raises ValueError if they are none."""
    try:
        vocab = tables["model"].get("vocab", {})  # type: ignore[index]
        # A table of ids, or with Unigram a list, in which the place is the id.
        ids = list(vocab.values()) if isinstance(vocab, dict) else [len(vocab) - 1]
        ids += [token["id"] for token in tables.get("added_tokens") or ()]  # type: ignore[attr-defined]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"it has no model, or no ids: {error!r}") from error
    other = next((one for one in ids if type(one) is not int or one < -1), None)
    if other is not None:
        raise ValueError(f"{str(other)[:40]!r} is no id")
    return max(ids, default=-1)


def whole_texts(tokenizer: Tokenizer) -> Tokenizer:
    """`tokenizer` itself, which from now on leaves nothing of a text out and adds nothing to it.

    A tokenizer.json may say how long the texts of its own model were. Take `tokenizer_digest` before: it counts that.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def require_known(ids: Iterable[int], vocab_size: int, tokenizer: Path) -> None:
    """Refuse ids for which a model of so many tokens has no row. Raises ConfigError."""
    largest = max(ids, default=-1)
    if largest >= vocab_size:
        raise ConfigError(
            f"{tokenizer}: it gives token {largest}, and the model knows {vocab_size}; give the tokenizer that belongs"
            " to the model"
        )


def tokenizer_file(path: Path) -> Path:
    """The file that `path` means."""
    return path / TOKENIZER if path.is_dir() else path


def end_token(tokenizer: Any, path: Path, chosen: str) -> int | None:
    """Id of the token behind each document: `chosen`, else the configured one, else a usual one.

    None if there is none. Raises ConfigError if the named token is not there.
    """
    usual = (token for token in _END_TOKENS if tokenizer.token_to_id(token) is not None)
    name = chosen or _configured(tokenizer_file(path).parent) or next(usual, "")
    found: int | None = tokenizer.token_to_id(name) if name else None
    if name and found is None:
        raise ConfigError(f"--eos: the tokenizer {path} has no token {name!r}; name one that it has")
    return found


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """sha256, hex, of the tokenizer's serialised form: what `tokenizer.sha256` of the manifest means."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def num_ids(tokenizer: Tokenizer) -> int:
    """Size of the vocabulary that a model needs: the largest id and one; ids below it may have no token."""
    return 1 + max(tokenizer.get_vocab().values(), default=-1)


def token_dtype(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    """Smallest unsigned type that holds every token id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def _configured(folder: Path) -> str:
    try:
        with (folder / "tokenizer_config.json").open("rb") as file:
            found = json.loads(file.read(TOKENIZER_FILE_BYTES_MAX)).get("eos_token")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    text = found.get("content") if isinstance(found, dict) else found
    return text if isinstance(text, str) else ""
