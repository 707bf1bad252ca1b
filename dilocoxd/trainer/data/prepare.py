"""From a corpus name to a token file on disk, once per machine: corpus, tokenizer, tokens, held-out part, entropy.

Cache: ``<cache>/data/<key>/`` with tokens.bin, tokenizer.json, index.json; appears by one rename, guarded by a file
lock, so that several sites on one machine share the work.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.store.durable import DiskFull, is_disk_full
from dilocoxd.store.prepared import INDEX, TOKENIZER, TOKENS, find_prepared
from dilocoxd.trainer.data.bpe import train_tokenizer
from dilocoxd.trainer.data.corpora import ENGLISH, TEXT_PREFIX, describe_environment, is_user_text, read_corpus
from dilocoxd.trainer.data.split import chunks_of, hold_out
from dilocoxd.trainer.tokens.limits import bounded_time
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer, num_ids, token_dtype, tokenizer_digest, whole_texts

FORMAT: Final = 2
"""Raise it when cleaning, splitting or the tokenizer changes: old caches are left alone."""

_ENCODE_BATCH: Final = 64

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Corpus of the run. ``chars_max`` limits how much of it is used (0: all); ``sha256`` (hex) is checked if given."""

    corpus: str = ENGLISH
    chars_max: int = 12 << 20
    validation_fraction: float = 0.02
    sha256: str = ""
    path: str = ""
    """Where the text of ``corpus`` lies on this machine, if that is a name of the run's own."""

    @classmethod
    def from_manifest(cls, manifest: Manifest, paths: Mapping[str, str] = MappingProxyType({})) -> DataConfig:
        """What a run trains on; ``paths`` says where corpora lie here (`paths.corpora` of site.toml)."""
        section = manifest.data
        path = paths.get(section.corpus, "")
        return cls(section.corpus, section.chars_max, section.validation_fraction, section.sha256, path)

    @property
    def where(self) -> str:
        """What `read_corpus` is to read."""
        return f"{TEXT_PREFIX}{self.path}" if self.path else self.corpus


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Tokenizer of the run; ``sha256`` (hex) is checked if given."""

    vocab_size: int = 1024
    sha256: str = ""
    is_given: bool = False
    """Not trained here: it is the one at ``path``, or comes with the text from a peer."""
    path: str = ""
    """tokenizer.json on this machine, or a folder with one."""

    @classmethod
    def from_manifest(cls, manifest: Manifest, path: str = "") -> TokenizerConfig:
        """The tokenizer of a run; ``path``: where a given one lies here."""
        section = manifest.tokenizer
        return cls(manifest.model.vocab_size, section.sha256, section.kind == "files", path)


@dataclass(frozen=True, slots=True)
class PreparedData:
    """A token file and what is known about it. Training tokens come first, held-out tokens after them."""

    directory: Path
    source: str
    """The corpus that was really read: "english" stands for the first that can be had."""
    data_sha256: str
    """Of tokens.bin, hex: what `data.sha256` of the manifest means."""
    tokenizer_sha256: str
    vocab_size: int
    num_train_tokens: int
    num_validation_tokens: int
    unigram_entropy: float
    """Entropy of the held-out tokens in nats per token: what a model reaches that knows frequencies, but no order."""

    def train_tokens(self) -> Tokens:
        """Memory map of the training tokens."""
        return self._map()[: self.num_train_tokens]

    def validation_tokens(self) -> Tokens:
        """Memory map of the held-out tokens."""
        return self._map()[self.num_train_tokens :]

    def tokenizer_path(self) -> Path:
        """The tokenizer as the `tokenizers` library saves it."""
        return self.directory / TOKENIZER

    def _map(self) -> Tokens:
        return np.memmap(self.directory / TOKENS, dtype=token_dtype(self.vocab_size), mode="r")


def _not_kept(folder: Path, error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"cannot keep training data in {folder} ({reason}); free space there, or give another place with --cache"


def prepare(data: DataConfig, tokenizer: TokenizerConfig, cache_dir: Path, progress: Progress) -> PreparedData:
    """Data of a run, from the cache or built now (seconds to a minute, network only for package corpora).

    Raises ConfigError when the corpus cannot be had or differs from the manifest's hashes, StoreError when the cache
    cannot be written.
    """
    known = find_prepared(cache_dir, data.sha256, tokenizer.sha256)
    found = _load(known) if known is not None else None
    if found is not None:
        return found
    folder = cache_dir / "data" / _key(data, tokenizer)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock"), progress):
            prepared = _load(folder)
            if prepared is None:
                _build(folder, data, tokenizer, progress)
                prepared = _load(folder)
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(_not_kept(folder, error)) from error
        raise StoreError(_not_kept(folder, error)) from error
    if prepared is None:
        raise StoreError(f"training data in {folder} vanished while it was written")
    _check_hashes(prepared, data, tokenizer)
    return prepared


def unigram_entropy(tokens: npt.NDArray[Any]) -> float:
    """Entropy in nats per token of the token frequencies in ``tokens``."""
    counts = np.bincount(tokens.astype(np.int64))
    shares = counts[counts > 0] / len(tokens)
    return float(-(shares * np.log(shares)).sum())


def _key(data: DataConfig, tokenizer: TokenizerConfig) -> str:
    parts: list[Any] = [FORMAT, data.where, data.chars_max, data.validation_fraction, tokenizer.vocab_size]
    if data.corpus in (ENGLISH, "stdlib"):
        parts.append(describe_environment())
    if tokenizer.is_given:
        given = load_tokenizer(Path(tokenizer.path)) if tokenizer.path else None
        parts.append(tokenizer_digest(given) if given is not None else "")
        if given is not None and (given.truncation is not None or given.padding is not None):
            # Folders of before have cut or padded texts.
            parts.append("whole texts")
    is_own = is_user_text(data.where)
    if is_own:
        # The user's file may change between runs: its content is part of the name.
        parts.append(hashlib.sha256(read_corpus(data.where, lambda _: None)[0].encode()).hexdigest())
    label = "text" if is_own else data.corpus
    return f"{label}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process of this machine prepares the data; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _load(folder: Path) -> PreparedData | None:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        prepared = PreparedData(directory=folder, **index)
        expected = (prepared.num_train_tokens + prepared.num_validation_tokens) * np.dtype(
            token_dtype(prepared.vocab_size)
        ).itemsize
        intact = (folder / TOKENS).stat().st_size == expected and prepared.tokenizer_path().is_file()
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return prepared if intact else None


def _tokenizer(config: TokenizerConfig, train: Sequence[str], progress: Progress) -> Any:
    """The given one, which must fit the model, or one trained on the text."""
    if not config.is_given:
        progress(f"training a tokenizer of {config.vocab_size} tokens")
        return train_tokenizer(train, config.vocab_size)
    if not config.path:
        raise ConfigError(
            "the run's tokenizer is not on this machine; join again, or start with --tokenizer DIR; for trainers on a"
            " node copy the folder of this text in data/ of the head's cache (paths.cache) to the same place there"
        )
    tokenizer = load_tokenizer(Path(config.path))
    if num_ids(tokenizer) > config.vocab_size:
        raise ConfigError(
            f"the tokenizer {config.path} has {num_ids(tokenizer)} tokens, model.vocab_size is"
            f" {config.vocab_size}: give the tokenizer that belongs to the model"
        )
    return tokenizer


def _build(folder: Path, data: DataConfig, config: TokenizerConfig, progress: Progress) -> None:
    progress(f"reading corpus {data.corpus}")
    text, source = read_corpus(data.where, progress)
    if data.chars_max and len(text) > data.chars_max:
        progress(
            f"left out: data.chars_max = {data.chars_max} of the {len(text)} characters of {data.corpus} are used;"
            " 0 would be all"
        )
    train, held = hold_out(chunks_of(text, data.chars_max), data.validation_fraction)
    tokenizer = _tokenizer(config, train, progress)
    dtype = token_dtype(config.vocab_size)
    mark = f".build-{folder.name}-"
    for left in folder.parent.glob(f"{mark}*"):  # of a process that was killed: we hold the lock of this text
        shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=mark, dir=folder.parent))
    try:
        # As it was given: nothing of a text may be left out, but what it says of lengths is part of its hash.
        # Not with its own `save`, whose error on a full disk is none that says so.
        (temporary / TOKENIZER).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        tokenizer_sha256 = tokenizer_digest(tokenizer)
        counts: list[int] = []
        with (temporary / TOKENS).open("wb") as file:
            for part in (train, held):
                counts.append(_write_tokens(file, whole_texts(tokenizer), part, dtype, progress))
            file.flush()
            os.fsync(file.fileno())
        held_tokens = np.fromfile(temporary / TOKENS, dtype=dtype)[counts[0] :]
        index = {
            "source": source,
            "data_sha256": hashlib.sha256((temporary / TOKENS).read_bytes()).hexdigest(),
            "tokenizer_sha256": tokenizer_sha256,
            "vocab_size": config.vocab_size,
            "num_train_tokens": counts[0],
            "num_validation_tokens": counts[1],
            "unigram_entropy": unigram_entropy(held_tokens),
        }
        (temporary / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
        if folder.exists():
            # Only an incomplete or damaged folder comes this far: _load refused it.
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    progress(f"{counts[0]:,} training and {counts[1]:,} held-out tokens in {folder}")


def _write_tokens(file: Any, tokenizer: Any, chunks: Sequence[str], dtype: type, progress: Progress) -> int:
    total = 0
    for start in range(0, len(chunks), _ENCODE_BATCH):
        with bounded_time():
            encoded = tokenizer.encode_batch_fast(list(chunks[start : start + _ENCODE_BATCH]))
        for encoding in encoded:
            file.write(np.asarray(encoding.ids, dtype=dtype).tobytes())
            total += len(encoding.ids)
        done = min(len(chunks), start + _ENCODE_BATCH)
        if len(chunks) > _ENCODE_BATCH:
            progress(f"tokenised {done} of {len(chunks)} chunks")
    return total


def _check_hashes(prepared: PreparedData, data: DataConfig, tokenizer: TokenizerConfig) -> None:
    for field, wanted, got in (
        ("data.sha256", data.sha256, prepared.data_sha256),
        ("tokenizer.sha256", tokenizer.sha256, prepared.tokenizer_sha256),
    ):
        if wanted and wanted != got:
            raise ConfigError(
                f"{field} of the run is {wanted}, but corpus {data.corpus!r} (read from {prepared.source}, "
                f"{describe_environment()}) gives {got} here: repeat `dilocoxd join ADDR`, which fetches it from a "
                f"peer, or copy the folder with that hash in its index.json from another site into "
                f"{prepared.directory.parent}"
            )
