"""Headers of safetensors files written and read without the library: readable by the safetensors library.

Written by hand because the library wants all tensors in memory at once; here the data streams.
Format: u64 little-endian length, JSON table {name: {dtype, shape, data_offsets}}, padded with blanks to 8 bytes, data.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dilocoxd.store.durable import Corrupt

HEADER_BYTES_MAX = 64 << 20
SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
"""What transformers calls the weights of a model: one file, or the list of several."""
_LENGTH = struct.Struct("<Q")
_ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file, in the order of the data. dtype: F32, BF16, F16 or U8."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


def encode_header(entries: Sequence[TensorEntry], metadata: Mapping[str, str]) -> bytes:
    """Everything of the file in front of the data."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for entry in entries:
        end = offset + entry.num_bytes
        table[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def read_header(path: Path) -> tuple[int, list[TensorEntry], dict[str, str]]:
    """(offset of the data, tensors in order of their data, metadata). Raises Corrupt and OSError."""
    with path.open("rb") as file:
        prefix = file.read(_LENGTH.size)
        length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else HEADER_BYTES_MAX + 1
        if length > HEADER_BYTES_MAX:
            raise Corrupt(f"{path}: not a safetensors file")
        text = file.read(length)
    try:
        table = json.loads(text)
        metadata = {str(key): str(value) for key, value in table.pop("__metadata__", {}).items()}
        items = sorted(table.items(), key=lambda item: int(item[1]["data_offsets"][0]))
        entries = [TensorEntry(name, tuple(item["shape"]), str(item["dtype"])) for name, item in items]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise Corrupt(f"{path}: damaged safetensors header") from error
    return _LENGTH.size + length, entries, metadata
