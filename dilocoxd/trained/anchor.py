"""The parameters of one shared state as a file of float32 values in canonical order, and what proves them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from dilocoxd.errors import StoreError
from dilocoxd.store import snapshots
from dilocoxd.store.durable import Corrupt, store_error
from dilocoxd.store.tensor_header import TensorEntry, read_header
from dilocoxd.wire.state_digest import AnchorStream

PIECE_BYTES = 4 << 20
Piece = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AnchorFile:
    """Where the values lie, and what they are called. Digests are hex; a mean of several states has no state digest."""

    path: Path
    offset: int
    entries: tuple[TensorEntry, ...]
    round: int
    anchor_sha256: str
    segments: tuple[int, ...]
    """Values of each segment: over these `anchor_sha256` is a tree (wire/state_digest.py)."""
    state_digest: str = ""
    chain_head: str = ""
    """Head of the chain that leads to this state, as its site stamped it; empty if it did not."""
    held: BinaryIO | None = field(default=None, compare=False)
    """Opened when the state was chosen: a running daemon may delete the snapshot before it is read."""

    def open(self) -> BinaryIO:
        """The file, opened. Raises OSError."""
        return self.path.open("rb") if self.held is None else os.fdopen(os.dup(self.held.fileno()), "rb")

    @property
    def num_parameters(self) -> int:
        return sum(entry.num_bytes for entry in self.entries) // 4


def anchor_of_snapshot(directory: Path, run_id: str) -> AnchorFile:
    """The anchor of a snapshot. Raises StoreError if it is not whole or of another run; its values are not read."""
    index = snapshots.read_index(directory)
    path = directory / snapshots.ANCHOR_NAME
    if index.run_id != run_id:
        raise StoreError(f"{directory} is of run {index.run_id}, not {run_id}; name the snapshot of this run")
    try:
        held = path.open("rb")
        offset, entries, _ = read_header(path)
        size = os.fstat(held.fileno()).st_size
    except OSError as error:
        raise store_error("reading a snapshot", path, error) from error
    num_bytes = sum(entry.num_bytes for entry in entries)
    is_whole = size == offset + num_bytes == offset + 4 * sum(values for values, _ in index.segments)
    if not is_whole or {entry.dtype for entry in entries} != {"F32"}:
        raise Corrupt(f"{path} is cut off or damaged; use another snapshot")
    return AnchorFile(
        path,
        offset,
        tuple(entries),
        index.round,
        index.anchor_sha256,
        tuple(values for values, _ in index.segments),
        index.state_digest,
        index.chain_head,
        held,
    )


class AnchorReader:
    """Reads the values once, from the first to the last, and hashes them on the way."""

    def __init__(self, anchor: AnchorFile, file: BinaryIO, progress: Callable[[int], None] = lambda done: None) -> None:
        """`file` is open at any place; `progress` hears the bytes done."""
        self._anchor = anchor
        self._file = file
        self._progress = progress
        self._hashes = AnchorStream([4 * values for values in anchor.segments])
        self._done = 0
        file.seek(anchor.offset)

    def pieces(self, entry: TensorEntry) -> Iterator[Piece]:
        """The values of the next tensor in pieces of at most 4 MiB. Raises StoreError if the file ends."""
        left = 4 * math.prod(entry.shape)  # whatever it will be written as, it lies there as float32
        while left:
            data = self._file.read(min(left, PIECE_BYTES))
            if not data or len(data) % 4:
                raise Corrupt(f"{self._anchor.path} became shorter while it was read; try again with another snapshot")
            self._hashes.add(data)
            self._done += len(data)
            left -= len(data)
            self._progress(self._done)
            yield np.frombuffer(data, dtype=np.float32)

    def finish(self) -> None:
        """Raise Corrupt unless all that was read is what the anchor is named by."""
        if not self._hashes.is_complete or self._hashes.anchor_sha256.hex() != self._anchor.anchor_sha256:
            raise Corrupt(
                f"{self._anchor.path} does not have the sha256 that its index names"
                f" ({self._anchor.anchor_sha256[:16]}); use another snapshot"
            )
