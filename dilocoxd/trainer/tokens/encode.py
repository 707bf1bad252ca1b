"""Documents of one piece to the shards of that piece: what one process of `data pack` does."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from dilocoxd.config.tokens.files import StoreFiles
from dilocoxd.errors import ConfigError, StoreError, reason_of
from dilocoxd.store.durable import fsync_directory, write_file
from dilocoxd.trainer.tokens.chat import ChatEncoder, canonical, has_answer, messages_of
from dilocoxd.trainer.tokens.inputs import TextPiece, documents, rows_of
from dilocoxd.trainer.tokens.limits import bounded_time
from dilocoxd.trainer.tokens.store import HELD, TRAIN, ShardInfo, StoreIndex
from dilocoxd.trainer.tokens.vocabulary import load_tokenizer, whole_texts
from dilocoxd.trainer.tokens.words import WordEncoder

WORK: Final = ".pack"
_BATCH_CHARS: Final = 1 << 20
_STRETCH_CHARS: Final = 1 << 16
"""A longer document is encoded in stretches that end at line ends: memory stays bounded, nearly all tokens equal."""


@dataclass(frozen=True, slots=True)
class PackSettings:
    """What all pieces are packed with."""

    tokenizer: str
    """Path of tokenizer.json."""
    dtype: str
    eos: int | None
    field: str
    held_fraction: float
    """Documents whose hash lies below it are held out."""
    is_chat: bool = False
    """Documents are conversations, and `tokenizer` lies in a folder with a chat template."""


@dataclass(frozen=True, slots=True)
class PackedPiece:
    """What became of a piece; its file in WORK says that the shards are complete."""

    number: int
    num_bytes: int
    shards: tuple[ShardInfo, ...]
    num_empty: int


class _Stretch(NamedTuple):
    """A document, or what of it is encoded at a time."""

    text: str
    part: str
    is_end: bool
    """Of the document."""


class _ShardWriter:
    """One shard while it grows."""

    def __init__(self, directory: Path, name: str, dtype: str, *, is_masked: bool) -> None:
        self._name, self._item, self._directory = name, np.dtype(dtype).itemsize, directory
        self._file: BinaryIO = (directory / WORK / f"{name}.bin").open("wb")
        self._hash = hashlib.sha256()
        self._mask = bytearray() if is_masked else None
        self._num_tokens = 0
        self._ends: list[int] = []

    def add(self, data: bytes, *, is_end: bool, mask: bytes = b"") -> None:
        self._file.write(data)
        if self._mask is not None:
            self._mask += mask
        self._hash.update(data)
        self._num_tokens += len(data) // self._item
        if is_end:
            self._ends.append(self._num_tokens)

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()

    def finish(self) -> ShardInfo | None:
        """Move the shard to its place, durably; None if there is nothing in it."""
        work, ends = self._directory / WORK, np.asarray(self._ends, dtype="<i8").tobytes()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if not self._num_tokens:
            (work / f"{self._name}.bin").unlink()
            return None
        write_file(self._directory / f"{self._name}.ends", ends)
        if self._mask is not None:
            write_file(self._directory / f"{self._name}.mask", bytes(self._mask))
        (work / f"{self._name}.bin").rename(self._directory / f"{self._name}.bin")
        fsync_directory(self._directory)
        return ShardInfo(
            self._name, self._num_tokens, len(self._ends), self._hash.hexdigest(), hashlib.sha256(ends).hexdigest(),
            hashlib.sha256(self._mask).hexdigest() if self._mask is not None else "",
        )  # fmt: skip


def pack_piece(directory: Path, piece: TextPiece, settings: PackSettings) -> PackedPiece:
    """Write the shards of `piece` and note that they are complete. Raises ConfigError, StoreError, OSError."""
    writers = {
        part: _ShardWriter(directory, f"{part}-{piece.number:05d}", settings.dtype, is_masked=settings.is_chat)
        for part in (TRAIN, HELD)
    }
    try:
        empty = _write_chats(piece, settings, writers) if settings.is_chat else _write_texts(piece, settings, writers)
        shards = tuple(info for writer in writers.values() if (info := writer.finish()) is not None)
    finally:
        for writer in writers.values():
            writer.close()
    packed = PackedPiece(piece.number, piece.num_bytes, shards, empty)
    write_file(_note(directory, piece.number), json.dumps(asdict(packed)).encode())
    return packed


@contextmanager
def _passing() -> Iterator[None]:
    """The tokenizer was read before the processes were started: that it cannot be now will pass, or is another one,
    which the next start notices. Nothing that was packed is wrong for it. Raises StoreError."""
    try:
        yield
    except (ConfigError, OSError) as error:
        what = f"{error.filename}: {reason_of(error)}" if isinstance(error, OSError) else str(error)
        raise StoreError(f"{what}; it could be read before: repeat the command, it goes on") from error


def _write_chats(piece: TextPiece, settings: PackSettings, writers: Mapping[str, _ShardWriter]) -> int:
    """How many conversations had no answer and were left out."""
    with _passing():
        encoder = ChatEncoder(Path(settings.tokenizer).parent)
    empty = 0
    for row, where in rows_of(piece):
        messages = messages_of(row, settings.field, where)
        if not has_answer(messages):
            empty += 1
            continue
        found = encoder.encode(messages, where)
        part = HELD if is_held_out(canonical(messages), settings.held_fraction) else TRAIN
        ids = np.asarray(found.ids, np.dtype(settings.dtype).newbyteorder("<")).tobytes()
        writers[part].add(ids, is_end=True, mask=bytes(found.answered))
    return empty


def _write_texts(piece: TextPiece, settings: PackSettings, writers: Mapping[str, _ShardWriter]) -> int:
    """How many documents were empty."""
    with _passing():
        encoder = WordEncoder(whole_texts(load_tokenizer(Path(settings.tokenizer))), settings.dtype)
    ends = [] if settings.eos is None else [settings.eos]
    end = np.asarray(ends, np.dtype(settings.dtype).newbyteorder("<")).tobytes()
    empty = 0
    for batch in _batches(documents(piece, settings.field)):
        stretches = [stretch for document in batch for stretch in _stretches(document, settings)]
        empty += sum(not document for document in batch)
        with bounded_time():
            encoded = encoder.encode([stretch.text for stretch in stretches])
        for found, stretch in zip(encoded, stretches, strict=True):
            writers[stretch.part].add(found + end if stretch.is_end else found, is_end=stretch.is_end)
    return empty


def packed_before(directory: Path, piece: TextPiece, settings: PackSettings) -> PackedPiece | None:
    """What `pack_piece` noted; None if it was not packed, or if the note or a shard is damaged: it is packed again."""
    try:
        tables: dict[str, Any] = json.loads(_note(directory, piece.number).read_bytes())
        packed = PackedPiece(**{**tables, "shards": tuple(ShardInfo(**shard) for shard in tables["shards"])})
        index = StoreIndex(settings.dtype, 0, settings.eos, "", packed.shards)
        StoreFiles(directory, index, {}).check()
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        return None
    is_same = packed.number == piece.number and packed.num_bytes == piece.num_bytes
    return packed if is_same else None


def _note(directory: Path, number: int) -> Path:
    return directory / WORK / f"{number:05d}.json"


def is_held_out(document: str, fraction: float) -> bool:
    """True for a `fraction` of all documents: by the hash of the text alone, so copies go the same way."""
    digest = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8, person=b"held-out").digest()
    return int.from_bytes(digest, "little") < fraction * 2.0**64


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _stretches(document: str, settings: PackSettings) -> Iterator[_Stretch]:
    if not document:
        return
    part = HELD if is_held_out(document, settings.held_fraction) else TRAIN
    start = 0
    while len(document) - start > _STRETCH_CHARS:
        end = document.rfind("\n", start, start + _STRETCH_CHARS) + 1
        end = end if end > start else start + _STRETCH_CHARS
        yield _Stretch(document[start:end], part, is_end=False)
        start = end
    yield _Stretch(document[start:], part, is_end=True)
