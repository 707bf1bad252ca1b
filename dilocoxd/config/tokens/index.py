"""index.json of a token store: everything that is known about it without opening a shard (docs/data.md).

Needs no numpy: the command line reads it, too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dilocoxd.config.loading import canonical_json
from dilocoxd.errors import ConfigError

FORMAT: Final = 1
INDEX: Final = "index.json"
TRAIN: Final = "train"
HELD: Final = "held"
DTYPES: Final = ("uint16", "uint32", "int32")
TOKENS_MAX: Final = 1 << 48
"""As in the manifest (config/sections/sources.py)."""
INDEX_BYTES_MAX: Final = 256 << 20
"""Of a store of a hundred tebibytes in shards of the usual size."""
_VOCAB_MAX: Final = 1 << 32
_NAME: Final = re.compile(rf"({TRAIN}|{HELD})-[0-9]{{5,}}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard, as index.json has it."""

    name: str
    num_tokens: int
    num_documents: int
    sha256: str
    """Of the token ids, hex."""
    ends_sha256: str
    """Of the document ends, hex."""
    mask_sha256: str = ""
    """Of the loss mask, hex; empty: every token counts."""

    def table(self) -> dict[str, Any]:
        """As index.json has it; without a mask as before there were any."""
        return {name: value for name, value in asdict(self).items() if name != "mask_sha256" or value}


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """index.json: everything that is known about a store without opening a shard."""

    dtype: str
    vocab_size: int
    eos: int | None
    """Token behind each document; None: there is none."""
    tokenizer_sha256: str
    """Hex; empty if it is not known which tokenizer made the tokens."""
    shards: tuple[ShardInfo, ...]
    format: int = FORMAT

    def canonical_bytes(self) -> bytes:
        """What is in index.json; its sha256 names the store."""
        return canonical_json({**asdict(self), "shards": [shard.table() for shard in self.shards]})

    def sha256(self) -> str:
        """Name of the content of all shards, hex: `sha256` of a source in the manifest."""
        return hashlib.sha256(self.canonical_bytes()).hexdigest()

    def of_part(self, part: str) -> tuple[ShardInfo, ...]:
        """Shards of TRAIN or HELD, in their order."""
        return tuple(shard for shard in self.shards if shard.name.startswith(f"{part}-"))


def read_index(path: Path) -> StoreIndex:
    """The index at `path`, every field of it of its type and in its range. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(INDEX_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"{path.parent} is no token store ({path.name}: {error.strerror}); make one with `dilocoxd data pack`"
        ) from error
    try:
        if len(data) > INDEX_BYTES_MAX:
            raise ValueError(f"it has more than {INDEX_BYTES_MAX >> 20} MiB")
        tables = json.loads(data)
        return _index_of(tables if isinstance(tables, dict) else {})
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged ({error}); pack or copy the store again") from error


def _index_of(tables: Mapping[str, Any]) -> StoreIndex:
    """Raises ValueError."""
    unknown = tables.keys() - StoreIndex.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"nothing is known of {min(unknown)!r:.40}")
    rows, eos, dtype = tables.get("shards"), tables.get("eos"), tables.get("dtype")
    if tables.get("format", FORMAT) != FORMAT or dtype not in DTYPES:
        raise ValueError(f"format {tables.get('format')!r:.40}, dtype {dtype!r:.40}; this version reads {FORMAT}")
    if not isinstance(rows, list):
        raise ValueError("it names no shards")
    shards = tuple(_shard_of(row if isinstance(row, dict) else {}) for row in rows)
    if len({shard.name for shard in shards}) < len(shards):
        raise ValueError("a shard is named twice")
    digest = tables.get("tokenizer_sha256")
    if digest != "":
        digest = _text(tables, "tokenizer_sha256", _SHA256)
    return StoreIndex(
        dtype,
        _number(tables, "vocab_size", _VOCAB_MAX),
        None if eos is None else _number(tables, "eos", _VOCAB_MAX),
        digest,
        shards,
    )


def _shard_of(row: Mapping[str, Any]) -> ShardInfo:
    unknown = row.keys() - ShardInfo.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"nothing is known of {min(unknown)!r:.40} of a shard")
    return ShardInfo(
        _text(row, "name", _NAME),
        _number(row, "num_tokens", TOKENS_MAX),
        _number(row, "num_documents", TOKENS_MAX),
        _text(row, "sha256", _SHA256),
        _text(row, "ends_sha256", _SHA256),
        _text(row, "mask_sha256", _SHA256) if "mask_sha256" in row else "",
    )


def _number(table: Mapping[str, Any], name: str, most: int) -> int:
    value = table.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}, no number from 0 to {most}")
    return value


def _text(table: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{name} is {value!r:.80}, which cannot be")
    return value
