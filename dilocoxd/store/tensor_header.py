"""Headers of safetensors files written and read without the library: readable by the safetensors library.

Written by hand because the library wants all tensors in memory at once; here the data streams.
Format: u64 little-endian length, JSON table {name: {dtype, shape, data_offsets}}, padded with blanks to 8 bytes, data.
"""

from __future__ import annotations

import json
import math
import re
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
_BITS = re.compile(r"[0-9]+")
_DIMENSIONS_MAX = 64


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file, in the order of the data. dtype: F32, BF16, F16, U8 or another that the format knows."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "F32"

    @property
    def num_bits(self) -> int:
        """Bits of an item are the first number in its type's name, F4 or F8_E4M3; BOOL has none, and 8."""
        bits = _BITS.search(self.dtype)
        return math.prod(self.shape) * (int(bits.group()) if bits is not None else 8)

    @property
    def num_bytes(self) -> int:
        return self.num_bits // 8


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
    """(offset of the data, tensors in order of their data, metadata). Raises Corrupt and OSError.

    The data of each tensor begins where that of the one before it ends, as the format asks; that the file is as long as
    all of them is for the caller to check.
    """
    with path.open("rb") as file:
        prefix = file.read(_LENGTH.size)
        length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else HEADER_BYTES_MAX + 1
        if length > HEADER_BYTES_MAX:
            raise Corrupt(f"{path}: not a safetensors file")
        text = file.read(length)
    try:
        table = json.loads(text)
        metadata = {str(key): str(value) for key, value in table.pop("__metadata__", {}).items()}
        offsets = {name: _offsets(item["data_offsets"]) for name, item in table.items()}
        entries = []
        end = 0
        for name in sorted(table, key=offsets.__getitem__):
            entry = TensorEntry(name, _shape(table[name]["shape"]), str(table[name]["dtype"]))
            start, stop = offsets[name]
            if start != end or entry.num_bits != 8 * (stop - start):
                raise ValueError(f"{name[:80]!r} is not at the bytes that the others and its shape leave to it")
            entries.append(entry)
            end = stop
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise Corrupt(f"{path}: damaged safetensors header ({error!s:.200})") from error
    return _LENGTH.size + length, entries, metadata


def _offsets(value: list[int]) -> tuple[int, int]:
    start, stop = _shape(value)
    return start, stop


def _shape(value: list[int]) -> tuple[int, ...]:
    if len(value) > _DIMENSIONS_MAX or any(type(one) is not int or one < 0 for one in value):
        raise ValueError(f"{str(value)[:80]} are no sizes")
    return tuple(value)
