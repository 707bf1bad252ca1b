"""The daemon's side of a snapshot that several outer parts write into the same files: begins and publishes it.

The files have the bytes that one outer worker would write. They appear when every part has written and fsynced its
segments, and every chunk was read back and hashed.
"""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from dilocoxd.daemon.workers.outer_worker import RequestRefused
from dilocoxd.errors import StoreError
from dilocoxd.store import snapshots
from dilocoxd.store.durable import DiskFull, store_error
from dilocoxd.store.tensor_header import read_header
from dilocoxd.wire.local import outer_worker as local
from dilocoxd.wire.state_digest import Leaf

HASH_BYTES = 32


def refusal(error: StoreError) -> RequestRefused:
    """What an outer worker answers when its disk fails."""
    return RequestRefused("disk_full" if isinstance(error, DiskFull) else "store", str(error))


def index_of(directory: str) -> snapshots.SnapshotIndex:
    """Blocks. Raises StoreError."""
    return snapshots.read_index(Path(directory))


def _run_id_of(path: Path) -> str:
    """As the parts wrote it. Raises StoreError, OSError."""
    return read_header(path)[2].get("run_id", "")


class Saving:
    """One snapshot that is being written."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._temporary = snapshots.temporary_directory(self._directory)
        self._started = time.monotonic()

    def prepare(self) -> None:
        """An empty folder for the parts. Blocks. Raises StoreError."""
        try:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary.mkdir(parents=True)
        except OSError as error:
            raise store_error("preparing a snapshot", self._directory, error) from error

    def forget(self) -> None:
        """Remove what was not published. Blocks."""
        shutil.rmtree(self._temporary, ignore_errors=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the files that the parts have made."""
        wanted = (snapshots.ANCHOR_NAME, *snapshots.OPTIONAL_NAMES)
        return tuple(name for name in wanted if (self._temporary / name).exists())

    async def publish(
        self, state: local.StateReady, segments: Sequence[tuple[int, Leaf]], hashes: Sequence[Sequence[bytes]]
    ) -> local.SnapshotSaved:
        """`segments`: values and hashes of each; `hashes`: [part][file], its chunks back to back."""
        names = self.names
        files = tuple(self._file(name, [part[place] for part in hashes]) for place, name in enumerate(names))
        run_id = await asyncio.to_thread(_run_id_of, self._temporary / snapshots.ANCHOR_NAME)
        index = snapshots.SnapshotIndex(
            run_id,
            state.round,
            state.anchor_sha256.hex(),
            state.state_digest.hex(),
            "",
            files,
            tuple((values, leaf.whole.hex()) for values, leaf in segments),
        )
        await asyncio.to_thread(snapshots.publish, self._temporary, self._directory, index)
        seconds = time.monotonic() - self._started
        return local.SnapshotSaved(0, state.round, str(self._directory), index.total_bytes, seconds)

    def _file(self, name: str, by_part: Sequence[bytes]) -> snapshots.SnapshotFile:
        size = (self._temporary / name).stat().st_size
        chunks = []
        for number in range(-(-size // snapshots.CHUNK_BYTES)):
            place, part = divmod(number, len(by_part))
            chunks.append(by_part[part][HASH_BYTES * place : HASH_BYTES * (place + 1)].hex())
        return snapshots.SnapshotFile(name, size, tuple(chunks))


class SnapshotOfParts:
    """At most one at a time."""

    def __init__(self) -> None:
        self._is_busy = False

    @contextlib.asynccontextmanager
    async def prepared(self, directory: str) -> AsyncIterator[Saving]:
        """A folder to write to, which is gone behind this unless it was published. Raises RequestRefused."""
        if self._is_busy:
            raise RequestRefused("busy", "another snapshot is being written; ask again when it is done")
        self._is_busy, saving = True, Saving(directory)
        try:
            await asyncio.to_thread(saving.prepare)
            yield saving
        except StoreError as error:
            raise refusal(error) from error
        except OSError as error:
            raise refusal(store_error("writing a snapshot", Path(directory), error)) from error
        finally:
            self._is_busy = False
            await asyncio.to_thread(saving.forget)
