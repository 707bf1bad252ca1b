"""What is packed: files named by the user, cut into pieces of bounded size that are packed independently.

The cut depends on names and sizes only, so the same inputs give the same shards whatever the number of processes.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens.folders import files_below, longest, reading, require_file, require_short, require_text

PIECE_BYTES: Final = 64 << 20
_SEARCH_BYTES: Final = 1 << 20
"""A text without a line end for so long is cut between two characters."""
TEXT_SUFFIXES: Final = (".txt", ".md", ".rst")
LINES_SUFFIXES: Final = (".jsonl", ".ndjson")
TABLE_SUFFIXES: Final = (".parquet", ".arrow")
KNOWN: Final = (*TEXT_SUFFIXES, *LINES_SUFFIXES, *TABLE_SUFFIXES)
_SPLITS: Final = "dataset_dict.json"
_REMEDY: Final = "give a readable file"


@dataclass(frozen=True, slots=True)
class TextFile:
    """One file."""

    path: Path
    kind: str
    """One of KNOWN; what is packed with gzip is named by what is inside."""
    num_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class TextPiece:
    """What one process packs at a time into shards of its own: the bytes, or row groups, from `start` to `stop`."""

    number: int
    path: Path
    kind: str
    start: int
    stop: int
    num_bytes: int
    """About how much there is to read, for progress."""

    @property
    def is_gzip(self) -> bool:
        """Has to be read from its beginning to its end."""
        return self.path.suffix == ".gz"


def list_inputs(paths: Sequence[Path]) -> tuple[list[TextFile], Counter[str]]:
    """(files to pack, number of files that were left out, by suffix). Raises ConfigError for what cannot be packed."""
    found: list[TextFile] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        if not path.exists() and not path.is_symlink():
            raise ConfigError(f"{path}: there is no such file or folder; give the path of one")
        files = files_below(path) if path.is_dir() else [path]
        for file in files:
            kind = _kind(file)
            if kind is None and not path.is_dir():
                raise ConfigError(
                    f"{file}: files of this kind cannot be packed; give {', '.join(KNOWN)}, or a folder of them"
                )
            if kind is None:
                left_out[file.suffix or file.name] += 1
                continue
            found.append(_input(file, kind))
    if not found:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no file to pack; give {', '.join(KNOWN)}, or a folder of them"
        )
    return found, left_out


def splits_of(paths: Sequence[Path]) -> list[tuple[Path, list[str]]]:
    """Those that Hugging Face `datasets` saved with several splits, and their names: whoever gives such a folder may
    not mean to train on what is for tests."""
    found = [(path, sorted(below.parent.name for below in path.glob("*/dataset_info.json"))) for path in paths]
    return [(path, splits) for path, splits in found if (path / _SPLITS).is_file() and len(splits) > 1]


def _kind(path: Path) -> str | None:
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if path.suffix == ".gz" and suffix in TABLE_SUFFIXES:
        return None
    return suffix if suffix in KNOWN else None


def _input(path: Path, kind: str) -> TextFile:
    require_file(path)
    try:
        stat = path.stat()
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a readable file or folder") from error
    return TextFile(path, kind, stat.st_size, stat.st_mtime_ns)


def cut(inputs: Sequence[TextFile]) -> list[TextPiece]:
    """Pieces of about PIECE_BYTES, numbered. Raises ConfigError, StoreError."""
    pieces: list[TextPiece] = []
    for item in inputs:
        with reading(item.path, _REMEDY):
            ranges = list(_ranges(item))
        for start, stop, num_bytes in ranges:
            pieces.append(TextPiece(len(pieces), item.path, item.kind, start, stop, num_bytes))
    return pieces


def _ranges(item: TextFile) -> Iterator[tuple[int, int, int]]:
    if item.kind == ".parquet":
        yield from _row_groups(item.path)
    elif item.kind == ".arrow" or item.path.suffix == ".gz":
        yield 0, item.num_bytes, item.num_bytes  # neither can be entered in the middle
    else:
        marks = [*range(0, max(1, item.num_bytes - PIECE_BYTES // 2), PIECE_BYTES), item.num_bytes]
        cuts = [0, *(_cut_near(item.path, mark) for mark in marks[1:-1]), item.num_bytes]
        yield from ((a, b, b - a) for a, b in pairwise(cuts) if a < b or item.num_bytes == 0)


def _cut_near(path: Path, position: int) -> int:
    """First line that begins behind `position`; without one nearby, the next character."""
    with path.open("rb") as file:
        file.seek(position)
        block = file.read(_SEARCH_BYTES)
    line = block.find(b"\n")
    if line >= 0:
        return position + line + 1
    if path.suffix in LINES_SUFFIXES:
        with path.open("rb") as file:
            file.seek(position)
            _line(file, path)
            return file.tell()
    return position + next(index for index, byte in enumerate(block) if byte & 0xC0 != 0x80)


def _row_groups(path: Path) -> Iterator[tuple[int, int, int]]:
    metadata = tables().parquet_file(path).metadata
    start, size = 0, 0
    for group in range(metadata.num_row_groups):
        size += metadata.row_group(group).total_byte_size
        if size >= PIECE_BYTES or group == metadata.num_row_groups - 1:
            yield start, group + 1, size
            start, size = group + 1, 0


def documents(piece: TextPiece, field: str) -> Iterator[str]:
    """The documents of a piece: lines of JSON or rows by `field`, a text as one document.

    Raises ConfigError; StoreError if the file cannot be read now.
    """
    try:
        if piece.kind in TABLE_SUFFIXES:
            yield from tables().rows(piece.path, range(piece.start, piece.stop), field)
        elif piece.kind in LINES_SUFFIXES:
            yield from _json_lines(piece, field)
        else:
            with reading(piece.path, _REMEDY):
                data = _whole(piece)
            require_text(data, piece.path)
            yield data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{piece.path}: not UTF-8 near byte {piece.start + error.start}; convert it to UTF-8"
        ) from error


def _whole(piece: TextPiece) -> bytes:
    """Raises OSError, EOFError, zlib.error."""
    with gzip.open(piece.path) if piece.is_gzip else piece.path.open("rb") as file:
        file.seek(piece.start)
        data = file.read(longest() if piece.is_gzip else piece.stop - piece.start)
    if piece.is_gzip:
        require_short(len(data), f"{piece.path}: it")
    if not piece.is_gzip and len(data) < piece.stop - piece.start:
        raise OSError("it became shorter")
    return data


def _lines_of(piece: TextPiece) -> Iterator[bytes]:
    """Line by line. Raises OSError, EOFError, zlib.error."""
    if piece.is_gzip:
        with gzip.open(piece.path) as unpacked:
            while line := _line(unpacked, piece.path):
                yield line
        return
    with piece.path.open("rb") as file:
        file.seek(piece.start)
        left = piece.stop - piece.start
        while left > 0:
            line = _line(file, piece.path, left)
            if not line:
                raise OSError("it became shorter")
            left -= len(line)
            yield line


def _line(file: BinaryIO | gzip.GzipFile, path: Path, most: int = sys.maxsize) -> bytes:
    line: bytes = file.readline(min(most, longest()))
    require_short(len(line), f"{path}: a line")
    return line


def _json_lines(piece: TextPiece, field: str) -> Iterator[str]:
    for row, where in rows_of(piece):
        yield text_of(row if isinstance(row, dict) else {}, field, where)


def rows_of(piece: TextPiece) -> Iterator[tuple[object, str]]:
    """(value, where it stands) of each line of JSON. Raises ConfigError, StoreError."""
    with reading(piece.path, _REMEDY):
        for number, line in enumerate(_lines_of(piece), 1):
            where = f"{piece.path}, line {number}" + (f" behind byte {piece.start}" if piece.start else "")
            try:
                # As json decodes bytes, but for what it takes for UTF-16, whose lines do not end where these do; other
                # systems begin files with a mark.
                text = line.decode("utf-8-sig", "surrogatepass").strip()
                if not text:
                    continue
                row = [] if text == "[" else json.loads(text)
            except UnicodeDecodeError as error:
                raise ConfigError(f"{where}: not UTF-8 ({error.reason}); convert the file to UTF-8") from error
            except (ValueError, RecursionError) as error:
                if b"\0" in line.strip(b"\0\n"):  # between letters: UTF-16 without its mark; alone: a torn end
                    raise ConfigError(f"{where}: not UTF-8 (zero bytes); convert the file to UTF-8") from error
                raise ConfigError(f"{where}: not JSON ({error}); correct or remove that line") from error
            if isinstance(row, list):  # as other tools save a whole data set
                raise ConfigError(f"{where}: a list begins here; write each of its elements on a line of its own")
            yield row, where


def text_of(row: dict[str, Any], field: str, where: str) -> str:
    """The text of a row. Raises ConfigError naming the fields that there are."""
    value = row.get(field)
    if not isinstance(value, str):
        if isinstance(row.get("messages"), list):
            raise ConfigError(f"{where}: no text in field {field!r}, but messages; pack conversations with --chat")
        there = ", ".join(name for name, other in row.items() if isinstance(other, str)) or "none"
        raise ConfigError(f"{where}: no text in field {field!r}; fields with text: {there}; choose with --field")
    return encodable(value)


def tables() -> Any:
    """The reader of parquet and arrow files. Raises ConfigError if its library is not installed."""
    try:
        from dilocoxd.trainer.tokens import arrow_tables
    except ImportError as error:
        raise ConfigError(
            "parquet files and data set folders need pyarrow; install it with: pip install 'dilocoxd[data]'"
        ) from error
    return arrow_tables


def encodable(text: str) -> str:
    """Without the halves of surrogate pairs that JSON can hold, which are no text that could be encoded."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
