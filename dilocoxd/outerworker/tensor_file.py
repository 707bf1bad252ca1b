"""Headers of safetensors files whose data is a shared buffer as it is: readable by the safetensors library.

Written by hand because the library wants all tensors in memory at once; here the data streams from the buffers.
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

from dilocoxd.outerworker.plan import HEADER_BYTES, Plan
from dilocoxd.store import snapshots
from dilocoxd.store.durable import Corrupt

HEADER_BYTES_MAX = 64 << 20
_LENGTH = struct.Struct("<Q")
_ITEM_BYTES = {"F32": 4, "U8": 1}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file, in the order of the data. dtype: F32 or U8."""

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
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise Corrupt(f"{path}: damaged safetensors header") from error
    return _LENGTH.size + length, entries, metadata


def anchor_entries(plan: Plan) -> list[TensorEntry]:
    """The parameters under their canonical names: exactly ANCHOR's bytes."""
    return [TensorEntry(param.name, param.shape) for param in plan.layout.params]


def memory_entries(plan: Plan) -> list[TensorEntry]:
    """One header of MEMORY and all its regions."""
    return [TensorEntry("memory", (plan.memory_total - HEADER_BYTES,), "U8")]


def snapshot_files(plan: Plan) -> list[tuple[str, list[TensorEntry]]]:
    """Names and contents of the files of a snapshot of this run."""
    files = [(snapshots.ANCHOR_NAME, anchor_entries(plan))]
    if plan.num_slots:
        files.append((snapshots.MOMENTUM_NAME, momentum_entries(plan)))
    if plan.has_memory:
        files.append((snapshots.MEMORY_NAME, memory_entries(plan)))
    return files


def momentum_entries(plan: Plan) -> list[TensorEntry]:
    """MOMENTUM's bytes: the parameters' names if there is one slot, else one tensor per segment and slot."""
    if plan.num_slots == 1:
        return anchor_entries(plan)
    return [
        TensorEntry(f"segment{segment.index}.slot{slot}", (segment.numel,))
        for segment in plan.segments
        for slot in range(plan.num_slots)
    ]
