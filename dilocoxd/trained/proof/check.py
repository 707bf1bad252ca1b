"""An exported directory against a run's log: what a third party needs to believe it.

The export's own word is taken for nothing but which round and number format to look at. Everything else is read from
the chain (signed by those who contributed) and made again from it.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.store.durable import Corrupt
from dilocoxd.store.tensor_header import INDEX_NAME, TensorEntry, read_header
from dilocoxd.trained.anchor import PIECE_BYTES
from dilocoxd.trained.choose import Tell
from dilocoxd.trained.export import CARD_NAME, CURVE_NAME, SUMS_NAME, Wanted, export
from dilocoxd.trained.found import StoredRun
from dilocoxd.trained.numbers import FORMATS
from dilocoxd.trained.tokenizer import TokenizerFiles

_TEXT_BYTES_MAX: Final = 64 << 20
_ROUND: Final = re.compile(r"^# (?P<run>\S+), round (?P<round>\d{1,18})$", re.MULTILINE)
_DTYPE: Final = re.compile(r"^\| weights \| (?P<dtype>[a-z0-9]+);", re.MULTILINE)
_MEAN: Final = re.compile(r"^\| mean of rounds \| (?P<rounds>[0-9, ]+) \|", re.MULTILINE)


_NOT_COMPARED: Final = frozenset({CARD_NAME, SUMS_NAME, CURVE_NAME})
"""For people: nothing loads them. So are files whose name begins with a dot, as git and download tools leave them."""


@dataclass(frozen=True, slots=True)
class ExportCheck:
    """`files`: compared besides the weights. `differing`: files and tensors that are not what the log gives, and what
    is there besides: a library may run or follow what it finds, code, a chat template, an adapter's settings."""

    run_id: str
    round: int
    files: tuple[str, ...]
    differing: tuple[str, ...]


def check_export(run: StoredRun, tokenizer: TokenizerFiles, directory: Path, tell: Tell) -> ExportCheck:
    """Make the round again that `directory` says it is, and compare every file of weights, configuration, tokenizer.

    Raises ConfigError for a directory that is no export of this run, and as `export`.
    """
    card = _text(directory / CARD_NAME)
    told = _ROUND.search(card)
    dtype = _DTYPE.search(card)
    if told is None or dtype is None or dtype["dtype"] not in FORMATS:
        raise ConfigError(f"{directory / CARD_NAME}: does not say which run and round this is; give a whole export")
    if told["run"] != run.manifest.run_id:
        raise ConfigError(f"{directory}: is of run {told['run']}, not {run.manifest.run_id}; give that run's directory")
    mean = _MEAN.search(card)
    wanted = Wanted(int(told["round"]), len(mean["rounds"].split(",")) if mean else 1, dtype["dtype"])
    beside = directory.absolute().parent
    # Where the export lies read-only, as on what somebody shares, the disk of temporary files has to hold it.
    place = beside if os.access(beside, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".dilocoxd-check-", dir=place) as folder:
        again = Path(folder) / "again"
        made = export(run, wanted, tokenizer, again, tell)
        kept = {name for name in made.files if not _is_weights(name)} - _NOT_COMPARED
        tell(f"comparing the weights and {len(kept)} files")
        differing = {name for name in kept if not _is_same(directory / name, again / name)}
        differing |= _differing_weights(directory, again)
    found = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    differing |= {name for name in found - kept - _NOT_COMPARED if not _is_weights(name)}
    return ExportCheck(run.manifest.run_id, made.round, tuple(sorted(kept)), tuple(sorted(differing)))


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors") or name == INDEX_NAME


def _differing_weights(directory: Path, again: Path) -> set[str]:
    """Names of tensors that are not the same in both, and the index if it says other than the files do."""
    theirs, ours = _tensors(directory), _tensors(again)
    differing = set(theirs) ^ set(ours)
    for name in set(theirs) & set(ours):
        if theirs[name][1:3] != ours[name][1:3] or not _has_same_bytes(theirs[name], ours[name]):
            differing.add(name)
    index = directory / INDEX_NAME
    if index.is_file():
        try:
            told = json.loads(_text(index))["weight_map"]
        except (ValueError, KeyError, TypeError):
            told = None
        if told != {name: place.path.name for name, place in theirs.items()}:
            differing.add(INDEX_NAME)
    return differing


class _Place(NamedTuple):
    """Where a tensor lies."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


def _tensors(directory: Path) -> dict[str, _Place]:
    found: dict[str, _Place] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            if not path.is_file():  # to open a pipe would wait for ever
                raise Corrupt(f"{path}: is no file")
            start, entries, _ = read_header(path)
            for entry in entries:
                if entry.name in found:
                    raise Corrupt(f"{path}: has {entry.name!r} once more")
                found[entry.name] = _Place(path, entry.dtype, entry.shape, start)
                start += entry.num_bytes
        except (OSError, KeyError, Corrupt) as error:
            raise ConfigError(
                f"{path}: cannot be read as safetensors ({reason_of(error)}); give a whole export"
            ) from error
    return found


def _has_same_bytes(one: _Place, other: _Place) -> bool:
    left = TensorEntry("", one.shape, one.dtype).num_bytes
    with one.path.open("rb") as first, other.path.open("rb") as second:
        first.seek(one.offset)
        second.seek(other.offset)
        while left:
            count = min(left, PIECE_BYTES)
            data = first.read(count)
            if len(data) != count or data != second.read(count):
                return False
            left -= count
    return True


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _text(path: Path) -> str:
    try:
        if not path.is_file() and path.exists():
            raise OSError("it is no file")
        with path.open("rb") as file:
            return file.read(_TEXT_BYTES_MAX).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read ({reason_of(error)}); give a directory that `dilocoxd export` wrote"
        ) from error
