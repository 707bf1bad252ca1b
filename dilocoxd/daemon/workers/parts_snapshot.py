"""The daemon's side of a snapshot that several outer parts write into the same files: begins and publishes it.

The files have the bytes that one outer worker would write. They appear when every part has written and fsynced its
segments, and every chunk was read back and hashed. On several machines each has files with its own part of the bytes;
the index is the same in all, and a snapshot is there when the first machine has it.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from dilocoxd.daemon.workers.machine_files import HeldFile, PartsMachine
from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import StoreError
from dilocoxd.store import snapshots
from dilocoxd.store.durable import DiskFull, store_error
from dilocoxd.store.tensor_header import read_header
from dilocoxd.wire.local import outer_parts as parts, outer_worker as local
from dilocoxd.wire.state_digest import Leaf

HASH_BYTES = 32


def refusal(error: StoreError) -> RequestRefused:
    """What an outer worker answers when its disk fails."""
    return RequestRefused("disk_full" if isinstance(error, DiskFull) else "store", str(error))


def index_of(directory: str) -> snapshots.SnapshotIndex:
    """Blocks. Raises StoreError."""
    return snapshots.read_index(Path(directory))


def first_parts(machines: Sequence[PartsMachine]) -> Iterator[int]:
    """Number of the first part on each machine."""
    return itertools.accumulate((machine.num_parts for machine in machines[:-1]), initial=0)


async def require_borders(
    machines: Sequence[PartsMachine], directory: str, index: snapshots.SnapshotIndex, checked: Sequence[parts.PartReady]
) -> None:
    """Raise Corrupt unless the chunks that no machine has whole are those of the index; `checked`: of each part."""
    for place, file in enumerate(index.files):
        held = [checked[part].held[place] for part in first_parts(machines)]
        whole = HeldFile(Path(directory) / file.name, file.size, held)
        for number, found in (await whole.border_hashes(machines)).items():
            if found != file.chunks[number]:
                raise snapshots.damaged_chunk(whole.path, number)


def _run_id_of(path: Path) -> str:
    """As the parts wrote it. Raises StoreError, OSError."""
    return read_header(path)[2].get("run_id", "")


class Saving:
    """One snapshot that is being written."""

    def __init__(self, directory: str, machines: Sequence[PartsMachine]) -> None:
        self._directory = Path(directory)
        self._temporary = snapshots.temporary_directory(self._directory)
        self._machines = machines
        self._started = time.monotonic()

    async def prepare(self) -> None:
        """An empty folder for the parts on each machine. Raises StoreError."""
        for machine in self._machines:
            await machine.files.prepare(self._directory)

    async def forget(self) -> None:
        """Remove what was not published."""
        for machine in self._machines:
            with contextlib.suppress(StoreError):
                await machine.files.forget(self._directory)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the files that the parts have made."""
        wanted = (snapshots.ANCHOR_NAME, *snapshots.OPTIONAL_NAMES)
        return tuple(name for name in wanted if (self._temporary / name).exists())

    async def publish(
        self,
        state: local.StateReady,
        segments: Sequence[tuple[int, Leaf]],
        hashed: Sequence[parts.SnapshotHashed],
    ) -> local.SnapshotSaved:
        """`segments`: values and hashes of each; `hashed`: of each part. Raises StoreError, OSError."""
        files = [await self._file(name, place, hashed) for place, name in enumerate(self.names)]
        run_id = await asyncio.to_thread(_run_id_of, self._temporary / snapshots.ANCHOR_NAME)
        index = snapshots.SnapshotIndex(
            run_id,
            state.round,
            state.anchor_sha256.hex(),
            state.state_digest.hex(),
            "",
            tuple(files),
            tuple((values, leaf.whole.hex()) for values, leaf in segments),
        )
        for machine in reversed(self._machines):  # whoever sees it with us may count on it everywhere
            await machine.files.publish(self._directory, index)
        seconds = time.monotonic() - self._started
        return local.SnapshotSaved(0, state.round, str(self._directory), index.total_bytes, seconds)

    async def _file(self, name: str, place: int, hashed: Sequence[parts.SnapshotHashed]) -> snapshots.SnapshotFile:
        path = self._temporary / name
        size = path.stat().st_size
        firsts = list(first_parts(self._machines))
        held = HeldFile(path, size, [hashed[part].held[place] for part in firsts])
        chunks = await held.border_hashes(self._machines)
        for machine, first, stretch in zip(self._machines, firsts, held.held, strict=True):
            numbers = snapshots.chunks_within(size, *stretch)
            for turn, answer in enumerate(hashed[first : first + machine.num_parts]):
                for at, number in enumerate(numbers[turn :: machine.num_parts]):
                    chunks[number] = answer.hashes[place][HASH_BYTES * at : HASH_BYTES * (at + 1)].hex()
        return snapshots.SnapshotFile(name, size, tuple(chunks[number] for number in sorted(chunks)))


class SnapshotOfParts:
    """At most one at a time."""

    def __init__(self, machines: Sequence[PartsMachine]) -> None:
        self._machines = machines
        self._is_busy = False

    @contextlib.asynccontextmanager
    async def prepared(self, directory: str) -> AsyncIterator[Saving]:
        """Folders to write to, which are gone behind this unless published. Raises RequestRefused."""
        if self._is_busy:
            raise RequestRefused("busy", "another snapshot is being written; ask again when it is done")
        self._is_busy, saving = True, Saving(directory, self._machines)
        try:
            await saving.prepare()
            yield saving
        except StoreError as error:
            raise refusal(error) from error
        except OSError as error:
            raise refusal(store_error("writing a snapshot", Path(directory), error)) from error
        finally:
            self._is_busy = False
            await saving.forget()
