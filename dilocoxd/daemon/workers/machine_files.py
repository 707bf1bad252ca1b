"""Folders of snapshots on each machine of a site, as the daemon handles them.

Every machine has files of the whole size, and in them what its parts hold: what lies across a border is put together
of pieces. Source: docs/adr/0035-a-site-on-several-machines.md.
"""

import asyncio
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dilocoxd.errors import StoreError
from dilocoxd.store import snapshots
from dilocoxd.store.durable import store_error

Stretch = tuple[int, ...]
"""Bytes [first, stop) of a file."""


class MachineFiles(Protocol):
    """Of one machine. Paths are those of the first one, wherever the machine has them. All raise StoreError."""

    async def prepare(self, directory: Path) -> None:
        """An empty folder for the parts to write the snapshot to that will be `directory`."""

    async def publish(self, directory: Path, index: snapshots.SnapshotIndex) -> None:
        """Let the snapshot appear, durably."""

    async def forget(self, directory: Path) -> None:
        """Remove what was prepared and not published."""

    async def read(self, path: Path, first: int, stop: int) -> bytes:
        """Bytes [first, stop) of a file."""


class LocalFiles:
    """Of this machine."""

    async def prepare(self, directory: Path) -> None:
        await asyncio.to_thread(self._prepare, directory)

    def _prepare(self, directory: Path) -> None:
        temporary = snapshots.temporary_directory(directory)
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        except OSError as error:
            raise store_error("preparing a snapshot", directory, error) from error

    async def publish(self, directory: Path, index: snapshots.SnapshotIndex) -> None:
        await asyncio.to_thread(snapshots.publish, snapshots.temporary_directory(directory), directory, index)

    async def forget(self, directory: Path) -> None:
        await asyncio.to_thread(shutil.rmtree, snapshots.temporary_directory(directory), ignore_errors=True)

    async def read(self, path: Path, first: int, stop: int) -> bytes:
        return await asyncio.to_thread(self._read, path, first, stop)

    def _read(self, path: Path, first: int, stop: int) -> bytes:
        try:
            with path.open("rb", buffering=0) as file:
                found = os.pread(file.fileno(), stop - first, first)
        except OSError as error:
            raise store_error("reading a snapshot", path, error) from error
        if len(found) != stop - first:
            raise StoreError(f"snapshot file {path} is too short; use another snapshot")
        return found


@dataclass(frozen=True, slots=True)
class PartsMachine:
    """`num_parts` outer parts run on it."""

    num_parts: int
    files: MachineFiles = field(default_factory=LocalFiles)


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file of `size` bytes, and what of it each machine has."""

    path: Path
    size: int
    held: Sequence[Stretch]

    def border_chunks(self) -> Iterator[int]:
        """Numbers of the chunks that no machine has whole."""
        whole = {number for first, stop in self.held for number in snapshots.chunks_within(self.size, first, stop)}
        return (number for number in snapshots.chunks_within(self.size, 0, self.size) if number not in whole)

    async def border_hashes(self, machines: Sequence[PartsMachine]) -> dict[int, str]:
        """Hash (hex) of each of them. Raises StoreError, also where a byte is nobody's."""
        return {number: await self._border_hash(number, machines) for number in self.border_chunks()}

    async def _border_hash(self, number: int, machines: Sequence[PartsMachine]) -> str:
        place, digest = number * snapshots.CHUNK_BYTES, hashlib.sha256()
        end = min(place + snapshots.CHUNK_BYTES, self.size)
        for machine, (first, stop) in zip(machines, self.held, strict=True):
            if first <= place < min(stop, end):
                digest.update(await machine.files.read(self.path, place, min(stop, end)))
                place = min(stop, end)
        if place < end:
            raise StoreError(f"no machine of the site has byte {place} of {self.path}")
        return digest.hexdigest()
