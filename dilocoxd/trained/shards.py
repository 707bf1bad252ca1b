"""Writes parameters as the sharded safetensors files with index that transformers reads, streaming from an anchor.

Never more than 4 MiB of a model are in memory. File names and index are those of `save_pretrained`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.store.durable import SteadyWriter, store_error, write_file
from dilocoxd.store.tensor_header import INDEX_NAME, SINGLE_NAME, TensorEntry, encode_header
from dilocoxd.trained.anchor import AnchorFile, AnchorReader
from dilocoxd.trained.numbers import NumberFormat


@dataclass(frozen=True, slots=True)
class Shard:
    """One file and the parameters in it, in canonical order."""

    name: str
    entries: tuple[TensorEntry, ...]


def plan_shards(entries: Sequence[TensorEntry], number_format: NumberFormat, bytes_max: int) -> list[Shard]:
    """Files of at most `bytes_max` each; a parameter that is larger has a file of its own."""
    groups: list[list[TensorEntry]] = [[]]
    filled = 0
    for one in entries:
        entry = TensorEntry(one.name, one.shape, number_format.tag)
        if groups[-1] and filled + entry.num_bytes > bytes_max:
            groups.append([])
            filled = 0
        groups[-1].append(entry)
        filled += entry.num_bytes
    if len(groups) == 1:
        return [Shard(SINGLE_NAME, tuple(groups[0]))]
    return [
        Shard(f"model-{number:05d}-of-{len(groups):05d}.safetensors", tuple(group))
        for number, group in enumerate(groups, 1)
    ]


def index_text(shards: Sequence[Shard], num_parameters: int) -> str:
    """Contents of model.safetensors.index.json."""
    total = sum(entry.num_bytes for shard in shards for entry in shard.entries)
    weight_map = {entry.name: shard.name for shard in shards for entry in shard.entries}
    metadata = {"total_parameters": num_parameters, "total_size": total}
    return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2) + "\n"


def write_shards(
    anchor: AnchorFile,
    folder: Path,
    number_format: NumberFormat,
    bytes_max: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[str]:
    """Write all files into `folder`, durably; returns their names.

    Raises StoreError when the disk refuses or the anchor is not what its name says, ConfigError for values that the
    format cannot hold. `progress` hears the bytes of the anchor that are done.
    """
    shards = plan_shards(anchor.entries, number_format, bytes_max)
    try:
        with anchor.open() as file:
            reader = AnchorReader(anchor, file, progress)
            for shard in shards:
                _write(folder / shard.name, shard, reader, number_format)
            reader.finish()
    except OSError as error:
        raise store_error("exporting the model", folder, error) from error
    names = [shard.name for shard in shards]
    if len(shards) > 1:
        write_file(folder / INDEX_NAME, index_text(shards, anchor.num_parameters).encode("utf-8"))
        names.append(INDEX_NAME)
    return names


def write_shard(folder: Path, shard: Shard, anchor: AnchorFile, number_format: NumberFormat) -> None:
    """Write all of an anchor into one file, durably, under the shard's names. Raises StoreError, ConfigError."""
    try:
        with anchor.open() as file:
            reader = AnchorReader(anchor, file)
            _write(folder / shard.name, shard, reader, number_format)
            reader.finish()
    except OSError as error:
        raise store_error("exporting the model", folder, error) from error


def _write(path: Path, shard: Shard, reader: AnchorReader, number_format: NumberFormat) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        writer = SteadyWriter(fd)
        offset = writer.write(encode_header(shard.entries, {"format": "pt"}), 0)
        for entry in shard.entries:
            for piece in reader.pieces(entry):
                offset = writer.write(number_format.convert(piece), offset)
        os.fsync(fd)
    finally:
        os.close(fd)
