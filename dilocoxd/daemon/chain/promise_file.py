"""Keeps the round machine's promise on disk: the attempt we will not fall behind, and the entry we voted for.

Files: `promise` (small, replaced atomically at every attempt), `promise.payload` (the result payload of the entry we
voted for, so that a daemon that dies between its vote and its commit still holds what it promised) and `reverts` (which
entries a majority has taken back: we promise never to take them again).
Source: protocol/06-rounds.md, lock rule and R29.
"""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.errors import StoreError, WireError
from dilocoxd.machines.peers.reverts import DECIDED_MAX
from dilocoxd.machines.round.outputs import KeptPromise, Promise
from dilocoxd.store.durable import TEMPORARY_SUFFIX, fsync_directory, stage_file, store_error, write_file
from dilocoxd.wire.codec import Length, decode_struct, encode_struct
from dilocoxd.wire.entry import ENTRY_BYTES_MAX
from dilocoxd.wire.messages import TakeBack

_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Reverts:
    taken_back: Annotated[tuple[TakeBack, ...], Length(0, DECIDED_MAX)]


class PromiseFile:
    """The newest promise of this site, and which entries it never takes again."""

    def __init__(self, directory: Path) -> None:
        self._reverts_path = directory / "reverts"
        self._path = directory / "promise"
        self._payload_path = directory / "promise.payload"
        self.round_at_start = 0
        """Of the last promise of the daemon's last life, once that is loaded; 0: there was none."""

    async def save(
        self,
        promise: Promise,
        result_fd: int,
        payloads: PayloadMaps,
        beside: Coroutine[None, None, None] | None = None,
    ) -> None:
        """Durable when this returns. Raises StoreError; the promise before it then stands, with its payload.

        `beside`: what must be done before the promise stands, and is done while it and the payload are written under
        other names: everybody waits for our vote, and three syncs at a time take little longer than one. Its
        StoreError is ours.
        """
        failures: list[StoreError] = []

        async def to_its_end(work: Coroutine[None, None, None]) -> None:
            try:
                await work
            except StoreError as error:
                failures.append(error)

        # None is cancelled when another fails: no thread reads RESULT, or writes, once this has returned.
        async with asyncio.TaskGroup() as group:
            copied = asyncio.to_thread(self._keep_payload, promise, result_fd, payloads)
            group.create_task(to_its_end(copied), name="payload of a vote")
            group.create_task(to_its_end(asyncio.to_thread(self._stage, promise)), name="promise")
            if beside is not None:
                group.create_task(to_its_end(beside), name="beside a promise")
        if failures:
            await asyncio.to_thread(self._forget_temporaries)
            raise failures[0]
        await asyncio.to_thread(self._publish, promise)

    @property
    def _temporaries(self) -> tuple[Path, Path]:
        """Of the payload and of the promise."""
        payload, promise = (path.with_name(path.name + TEMPORARY_SUFFIX) for path in (self._payload_path, self._path))
        return payload, promise

    def _forget_temporaries(self) -> None:
        for temporary in self._temporaries:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _keep_payload(self, promise: Promise, result_fd: int, payloads: PayloadMaps) -> None:
        if promise.entry is not None:
            self._copy(result_fd, payloads.at(promise.entry.lowrank_r).total_bytes)

    def _stage(self, promise: Promise) -> None:
        stage_file(self._path, encode_struct(promise))

    def _publish(self, promise: Promise) -> None:
        payload, temporary = self._temporaries
        try:
            if promise.entry is not None:
                payload.replace(self._payload_path)  # first: no promise stands without its payload
            temporary.replace(self._path)
            fsync_directory(self._path.parent)
        except OSError as error:
            self._forget_temporaries()
            raise store_error("keeping what we promise", self._path, error) from error

    async def save_reverts(self, taken_back: tuple[TakeBack, ...]) -> None:
        """Durable when this returns, in the place of those before. Raises StoreError."""
        await asyncio.to_thread(write_file, self._reverts_path, encode_struct(_Reverts(taken_back)))

    async def load_reverts(self) -> tuple[TakeBack, ...]:
        """What was saved last. Raises StoreError when the file is damaged: we could take again what we must not."""
        try:
            data = await asyncio.to_thread(self._reverts_path.read_bytes)
            return decode_struct(_Reverts, data, size_max=DECIDED_MAX * ENTRY_BYTES_MAX).taken_back
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise store_error("reading which entries were taken back", self._reverts_path, error) from error
        except WireError as error:
            raise StoreError(
                f"{self._reverts_path} is damaged ({error}); remove it, the others tell it again"
            ) from error

    def _copy(self, source: int, length: int) -> None:
        temporary, _ = self._temporaries
        try:
            with temporary.open("wb", buffering=0) as file:
                for start in range(0, length, _COPY_BYTES):
                    file.write(os.pread(source, min(_COPY_BYTES, length - start), start))
                os.fsync(file.fileno())
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise store_error("keeping the payload we vote for", self._payload_path, error) from error

    async def load(self, result_fd: int, payloads: PayloadMaps) -> KeptPromise | None:
        """The promise of the daemon's last life; the payload that belongs to it is put back into RESULT.

        Raises StoreError when the file is damaged: what we promised is then unknown.
        """
        return await asyncio.to_thread(self._load, result_fd, payloads)

    def _load(self, result_fd: int, payloads: PayloadMaps) -> KeptPromise | None:
        try:
            promise = decode_struct(Promise, self._path.read_bytes(), size_max=ENTRY_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error("reading the last promise", self._path, error) from error
        except WireError as error:
            raise StoreError(
                f"{self._path} is damaged ({error}); remove it if no other site is in the middle of a round"
            ) from error
        self.round_at_start = int(promise.round)
        return KeptPromise(promise, promise.entry is not None and self._restore(promise, result_fd, payloads))

    def _restore(self, promise: Promise, result_fd: int, payloads: PayloadMaps) -> bool:
        assert promise.entry is not None
        lengths = payloads.at(promise.entry.lowrank_r).lengths
        if len(promise.entry.result_hashes) != len(lengths):
            return False
        try:
            with self._payload_path.open("rb") as file:
                offset = 0
                for length, expected in zip(lengths, promise.entry.result_hashes, strict=True):
                    data = file.read(length)
                    if hashlib.sha256(data).digest() != expected:
                        return False
                    os.pwrite(result_fd, data, offset)
                    offset += length
        except OSError:
            return False
        return True
