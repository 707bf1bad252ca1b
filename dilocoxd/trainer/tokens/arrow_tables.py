"""Rows of parquet files, and of the .arrow files in a folder that Hugging Face `datasets` saved. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.ipc
import pyarrow.parquet

from dilocoxd.errors import ConfigError
from dilocoxd.trainer.tokens.folders import reading, require_short

_BATCH_ROWS: Final = 1024
_REMEDY: Final = "download or write it again"


def parquet_file(path: Path, dictionaries: Sequence[str] = ()) -> Any:
    """The opened file; texts that repeat in these columns stay one in memory. Raises ConfigError, StoreError."""
    try:
        with reading(path, _REMEDY):
            return pyarrow.parquet.ParquetFile(path, read_dictionary=dictionaries)
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path}: no parquet file ({error}); {_REMEDY}") from error


def rows(path: Path, groups: range, field: str) -> Iterator[str]:
    """Texts in column `field`, row by row; of a parquet file those in `groups`. Raises ConfigError, StoreError."""
    try:
        with reading(path, _REMEDY):
            for first, batch in _batches(path, groups, field):
                yield from _texts(batch, field, path, first)
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path}: cannot be read ({error}); {_REMEDY}") from error


def _batches(path: Path, groups: range, field: str) -> Iterator[tuple[int, Any]]:
    """(number of its first row in the file, rows)."""
    first = 1
    if path.suffix == ".parquet":
        file = parquet_file(path)
        # Before it is asked for: the library has no words for a column that is not there.
        _check(file.schema_arrow.names, field, path)
        first += sum(file.metadata.row_group(number).num_rows for number in range(groups.start))
        batches = parquet_file(path, [field]).iter_batches(_BATCH_ROWS, row_groups=groups, columns=[field])
        yield from _numbered(batches, first)
        return
    with pyarrow.memory_map(str(path)) as source:
        try:
            yield from _numbered(pyarrow.ipc.open_stream(source), first)
        except pyarrow.ArrowInvalid:
            file = pyarrow.ipc.open_file(source)
            yield from _numbered((file.get_batch(index) for index in range(file.num_record_batches)), first)


def _numbered(batches: Iterable[Any], first: int) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        yield first, batch
        first += batch.num_rows


def _texts(batch: Any, field: str, path: Path, first: int) -> Iterator[str]:
    _check(batch.schema.names, field, path)
    # Not all at once: a small file can name one long text in every row.
    for row, found in enumerate(batch.column(field), first):
        value = found.as_py()
        if not isinstance(value, str):
            raise ConfigError(
                f"{path}: row {row} has no text in {field!r}; fill or remove it, or choose a column with --field"
            )
        require_short(len(value), f"{path}: row {row}")
        yield value


def _check(names: list[str], field: str, path: Path) -> None:
    if field not in names:
        raise ConfigError(f"{path}: no column {field!r}; columns: {', '.join(names)}; choose with --field")
    if names.count(field) > 1:
        raise ConfigError(f"{path}: {names.count(field)} columns are called {field!r}; rename all but one")
