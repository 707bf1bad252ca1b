"""A directory of a Hugging Face model as a source of parameters: which tensor of which file is which parameter.

Read piece by piece, never whole. What is missing, damaged or not a number is refused before anything is made of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.store.durable import Corrupt
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.store.tensor_header import HEADER_BYTES_MAX, INDEX_NAME, SINGLE_NAME, TensorEntry, read_header
from dilocoxd.wire.layout import ParamSpec

PIECE_ITEMS: Final = 1 << 20
Floats = npt.NDArray[np.float32]


def _from_bfloat16(data: bytes) -> Floats:
    return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)


READERS: Final[dict[str, tuple[int, Callable[[bytes], Floats]]]] = {
    "F32": (4, lambda data: np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)),
    "F16": (2, lambda data: np.frombuffer(data, dtype="<f2").astype(np.float32)),
    "BF16": (2, _from_bfloat16),
}
"""dtype in a safetensors header to (bytes of an item, values of some bytes)."""
_FREQUENCIES: Final = re.compile(r"(.*\.)?inv_freq")
_MASK: Final = re.compile(r"(.*\.)?(attn|attention)\.(masked_)?bias")
_HEADS: Final = ("lm_head.weight", "embed_out.weight")


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor in a file."""

    path: Path
    offset: int
    entry: TensorEntry


class Pretrained:
    """The tensors of a directory. Raises ConfigError if it has none, not all that its index names, or one twice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = _weight_files(folder)
        self._tensors: dict[str, Found] = {}
        for path in self.files:
            found = _tensors_of(path)
            if twice := min(found.keys() & self._tensors.keys(), default=""):
                raise ConfigError(
                    f"{path}: tensor {twice!r} is in {self._tensors[twice].path.name} as well; download the model again"
                )
            self._tensors |= found

    def hashes(self, progress: Callable[[str], None]) -> dict[str, str]:
        """sha256 of each file of weights, hex, by name; reads all of them."""
        found = {}
        for path in self.files:
            progress(f"hashing {path.name}")
            found[path.name] = file_sha256(path).hex()
        return found

    def require(self, specs: tuple[ParamSpec, ...]) -> None:
        """Raise ConfigError unless all of these are there, in their shapes."""
        for spec in specs:
            self.parts(spec)

    def left_out(self, specs: tuple[ParamSpec, ...]) -> list[str]:
        """Tensors that the model of these parameters loses. Raises ConfigError if one of the parameters is missing.

        What older files save beside their parameters and the model makes again is none: masks, rotary frequencies, the
        head of a model whose head is its embedding.
        """
        taken = {part.entry.name: part for spec in specs for part in self.parts(spec)}
        others = [found for name, found in sorted(self._tensors.items()) if name not in taken]
        return [one.entry.name for one in others if not _is_made_again(one.entry) and not _is_tied(one, taken.values())]

    def parts(self, spec: ParamSpec) -> list[Found]:
        """The tensors whose values, one after the other, are this parameter's. Raises ConfigError if one is missing."""
        wanted = [(spec.name, spec.shape)]
        if spec.name not in self._tensors:
            wanted = self._expert_parts(spec) or [(self._other_name(spec.name), spec.shape)]
        return [self._one(name, shape, spec.name) for name, shape in wanted]

    def _other_name(self, name: str) -> str:
        """What older files call the same tensor."""
        if name == "lm_head.weight" and "embed_out.weight" in self._tensors:
            return "embed_out.weight"
        for candidate in (name.replace(".mlp.", ".block_sparse_moe."), name.partition(".")[2]):
            if candidate in self._tensors:
                return candidate
        return name

    def _expert_parts(self, spec: ParamSpec) -> list[tuple[str, tuple[int, ...]]]:
        """Experts lie one by one in files, and together in the model; empty if this parameter is no such thing."""
        before, experts, leaf = spec.name.rpartition(".experts.")
        if not experts or leaf not in ("gate_up_proj", "down_proj"):
            return []
        count, rows, columns = spec.shape
        for prefix, gate, up, down in (
            (before, "gate_proj", "up_proj", "down_proj"),
            (before.replace(".mlp", ".block_sparse_moe"), "w1", "w3", "w2"),
        ):
            if f"{prefix}.experts.0.{down}.weight" not in self._tensors:
                continue
            if leaf == "down_proj":
                return [(f"{prefix}.experts.{index}.{down}.weight", (rows, columns)) for index in range(count)]
            return [
                (f"{prefix}.experts.{index}.{name}.weight", (rows // 2, columns))
                for index in range(count)
                for name in (gate, up)
            ]
        return []

    def _one(self, name: str, shape: tuple[int, ...], parameter: str) -> Found:
        found = self._tensors.get(name)
        if found is None:
            raise ConfigError(
                f"{self.folder}: no file has tensor {name!r}, which config.json asks for; download the model again, or"
                " use the config.json that belongs to it"
            )
        if found.entry.shape != shape:
            raise ConfigError(
                f"{found.path}: tensor {name!r} is {list(found.entry.shape)}, config.json asks for {list(shape)}"
                f" ({parameter}); use the config.json that belongs to these files"
            )
        if found.entry.dtype not in READERS:
            raise ConfigError(
                f"{found.path}: tensor {name!r} is {found.entry.dtype}; convert it to one of {', '.join(READERS)}"
            )
        return found

    def values(self, spec: ParamSpec) -> Iterator[Floats]:
        """The parameter's values in float32, in pieces. Raises ConfigError for what is no finite number."""
        for part in self.parts(spec):
            size, read = READERS[part.entry.dtype]
            left = math.prod(part.entry.shape)
            with part.path.open("rb") as file:
                file.seek(part.offset)
                while left:
                    count = min(left, PIECE_ITEMS)
                    data = file.read(count * size)
                    if len(data) != count * size:
                        raise ConfigError(f"{part.path} became shorter while it was read; download it again")
                    piece = read(data)
                    if not np.isfinite(piece).all():
                        raise ConfigError(
                            f"{part.path}: tensor {part.entry.name!r} holds NaN or Inf;"
                            " give other weights, these cannot be trained"
                        )
                    left -= count
                    yield piece


def _is_made_again(entry: TensorEntry) -> bool:
    if _FREQUENCIES.fullmatch(entry.name):
        return True
    # A learnt bias has one dimension, a mask four, and what stands for minus infinity none.
    return _MASK.fullmatch(entry.name) is not None and len(entry.shape) in (0, 4)


def _is_tied(head: Found, taken: Iterable[Found]) -> bool:
    """A head with the bits of a tensor that is taken: the embedding."""
    return head.entry.name in _HEADS and any(_same(head, other) for other in taken)


def _same(one: Found, other: Found) -> bool:
    if (one.entry.shape, one.entry.dtype) != (other.entry.shape, other.entry.dtype):
        return False
    left = one.entry.num_bytes
    with one.path.open("rb") as first, other.path.open("rb") as second:
        first.seek(one.offset)
        second.seek(other.offset)
        while left:
            count = min(left, PIECE_ITEMS)
            if first.read(count) != second.read(count):
                return False
            left -= count
    return True


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if index.is_file():
        try:
            with index.open("rb") as file:
                text = file.read(HEADER_BYTES_MAX + 1)
            if len(text) > HEADER_BYTES_MAX:
                raise ValueError(f"it has more than {HEADER_BYTES_MAX >> 20} MiB")
            names = sorted(set(json.loads(text)["weight_map"].values()))
            if other := [name for name in names if not isinstance(name, str)]:
                raise TypeError(f"{other[0]!r} is no name of a file")
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ConfigError(f"{index}: cannot be read ({reason_of(error)}); download the model again") from error
    else:
        names = [SINGLE_NAME]
    missing = [name for name in names if Path(name).name != name or not _is_file(folder / name)]
    if missing:
        raise ConfigError(
            f"{folder}: {missing[0]:.200} is missing ({len(missing)} of {len(names)} files of weights); download the"
            " model again, as safetensors"
        )
    return [folder / name for name in names]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that no file can have, or a folder that cannot be searched
        return False


def _tensors_of(path: Path) -> dict[str, Found]:
    try:
        start, entries, _ = read_header(path)
        size = path.stat().st_size
    except (OSError, Corrupt) as error:
        raise ConfigError(f"{path}: cannot be read as safetensors ({reason_of(error)}); download it again") from error
    found, offset = {}, start
    for entry in entries:
        found[entry.name] = Found(path, offset, entry)
        offset += entry.num_bytes
    if size != offset:
        raise ConfigError(f"{path}: has {size} bytes, its header speaks of {offset}; it is cut off, download it again")
    return found
