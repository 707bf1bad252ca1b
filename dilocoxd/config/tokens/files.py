"""Which files of a token store are here, without opening one: a site may have only some of its shards (docs/data.md).

Needs no numpy: daemon and command line ask it, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dilocoxd.config.tokens.index import (
    HELD,
    INDEX,
    INDEX_BYTES_MAX,
    TOKENS_MAX,
    TRAIN,
    ShardInfo,
    StoreIndex,
    read_index,
)
from dilocoxd.errors import ConfigError, reason_of

PATHS: Final = "paths.json"
_ITEM_BYTES: Final[Mapping[str, int]] = {"uint16": 2, "uint32": 4, "int32": 4}
_ENDS_ITEM_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Where the token ids of a shard are."""

    path: Path
    first_token: int = 0
    """Tokens of the file before the shard."""


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """A store's folder, what should be in it, and where else the shards of an adopted one lie."""

    directory: Path
    index: StoreIndex
    places: Mapping[str, ShardPlace]

    def place(self, shard: ShardInfo) -> ShardPlace:
        """Where its token ids are."""
        return self.places.get(shard.name) or ShardPlace(self.directory / f"{shard.name}.bin")

    def problem(self, shard: ShardInfo) -> str:
        """What is missing of it; empty if all of it is there in its full length."""
        place = self.place(shard)
        wanted = [
            (place.path, (place.first_token + shard.num_tokens) * _ITEM_BYTES[self.index.dtype]),
            (self.directory / f"{shard.name}.ends", shard.num_documents * _ENDS_ITEM_BYTES),
        ]
        if shard.mask_sha256:
            wanted.append((self.directory / f"{shard.name}.mask", shard.num_tokens))
        return next(filter(None, (_lack(path, size) for path, size in wanted)), "")

    def whole_volumes(self, count: int) -> frozenset[int]:
        """Those of `count` volumes of which every shard is here."""
        cut = volumes_of(self.index, count)
        return frozenset(
            number for number, shards in enumerate(cut) if not any(self.problem(shard) for shard in shards)
        )

    def check(self, num_volumes: int = 1) -> frozenset[int]:
        """The volumes that are here. Raises ConfigError if there is none, or if something held out is missing."""
        lacking = next(filter(None, (self.problem(shard) for shard in self.index.of_part(HELD))), "")
        here = self.whole_volumes(num_volumes)
        if lacking or not here:
            first = lacking or next(filter(None, (self.problem(shard) for shard in self.index.of_part(TRAIN))), "")
            none = f", and none of its {num_volumes} volumes is whole" if num_volumes > 1 and not lacking else ""
            raise ConfigError(f"token store {self.directory}: {first}{none}; copy or pack it again")
        return here


def files_of(directory: Path) -> StoreFiles:
    """Of the store in `directory`; no shard is looked at yet. Raises ConfigError."""
    index = read_index(directory / INDEX)
    try:
        return StoreFiles(directory, index, _places(directory))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{directory / PATHS} is damaged ({reason_of(error)}); pack or copy the store again"
        ) from error


def volumes_of(index: StoreIndex, count: int) -> tuple[tuple[ShardInfo, ...], ...]:
    """The training shards in `count` volumes, in their order, of about as many tokens each; some may be empty.

    A shard belongs where its middle falls, so that every site cuts alike.
    """
    shards = index.of_part(TRAIN)
    total, before = max(1, sum(shard.num_tokens for shard in shards)), 0
    found: list[list[ShardInfo]] = [[] for _ in range(count)]
    for shard in shards:
        middle = 2 * before + shard.num_tokens
        found[min(count - 1, middle * count // (2 * total))].append(shard)
        before += shard.num_tokens
    return tuple(map(tuple, found))


def require_volumes(name: str, index: StoreIndex, count: int, seq_len: int) -> None:
    """Refuse a number of volumes into which the store cannot be cut. Raises ConfigError."""
    for number, shards in enumerate(volumes_of(index, count) if count > 1 else ()):
        if sum(shard.num_tokens for shard in shards) <= seq_len:
            raise ConfigError(
                f"data.volumes = {count}: volume {number} of the token store {name!r} would have"
                f" {len(shards)} of its {len(index.of_part(TRAIN))} shards and no window of {seq_len + 1} tokens; lower"
                " data.volumes, or pack the text as more files of about one size"
            )


def _lack(path: Path, wanted: int) -> str:
    try:
        size = path.stat().st_size
    except OSError:
        size = -1
    if size >= wanted:
        return ""
    return f"{path} is missing" if size < 0 else f"{path} has {size} of {wanted} bytes"


def _places(directory: Path) -> dict[str, ShardPlace]:
    path = directory / PATHS
    if not path.exists():
        return {}
    with path.open("rb") as file:
        data = file.read(INDEX_BYTES_MAX + 1)
    if len(data) > INDEX_BYTES_MAX:
        raise ValueError(f"it has more than {INDEX_BYTES_MAX >> 20} MiB")
    tables = json.loads(data)
    if not isinstance(tables, dict):
        raise ValueError("it is no table of shards")
    found: dict[str, ShardPlace] = {}
    for name, row in tables.items():
        if not isinstance(row, dict) or not isinstance(row.get("path"), str) or type(row.get("first_token")) is not int:
            raise ValueError(f"{name!r} needs path, a text, and first_token, a number")
        if not 0 <= row["first_token"] <= TOKENS_MAX or "\0" in row["path"]:
            raise ValueError(f"{name!r} has first_token {row['first_token']} in {row['path']!r}")
        found[name] = ShardPlace(directory / row["path"], row["first_token"])
    return found
