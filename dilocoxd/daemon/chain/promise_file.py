"""Keeps the round machine's promise on disk: the attempt we will not fall behind, and the entry we voted for.

Files: `promise` (small, replaced atomically at every attempt), `promise.payload` (the result payload of the entry we
voted for, so that a daemon that dies between its vote and its commit still holds what it promised) and `reverts` (which
entries a majority has taken back: we promise never to take them again).
Source: protocol/06-rounds.md, lock rule and R29.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from dilocoxd.daemon.chain.early_writes import EarlyWrites
from dilocoxd.daemon.chain.payload_map import PayloadMaps, Place
from dilocoxd.daemon.chain.voted_payload import VotedPayload
from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import Digest
from dilocoxd.machines.peers.reverts import DECIDED_MAX
from dilocoxd.machines.round.outputs import KeptPromise, Promise
from dilocoxd.store.durable import TEMPORARY_SUFFIX, fsync_directory, stage_file, store_error, write_file
from dilocoxd.wire.codec import Length, decode_struct, encode_struct
from dilocoxd.wire.entry import ENTRY_BYTES_MAX, entry_hash
from dilocoxd.wire.messages import TakeBack


@dataclass(frozen=True, slots=True)
class _Reverts:
    taken_back: Annotated[tuple[TakeBack, ...], Length(0, DECIDED_MAX)]


class PromiseFile:
    """The newest promise of this site, and which entries it never takes again."""

    def __init__(self, directory: Path) -> None:
        self._reverts_path = directory / "reverts"
        self._path = directory / "promise"
        self._payload = VotedPayload(directory / "promise.payload")
        self._early = EarlyWrites()
        self._is_new = False
        """Whether a payload was written for the entry that is promised next: not, if it is that of the lock before."""
        self._is_right = False
        """Whether what was written last is the payload of the entry that is promised next."""
        self._held: Digest | None = None
        """The entry whose payload, checked, is in `promise.payload`; None: of none, as far as we know."""
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

        self._early.call_off()
        # None is cancelled when another fails: no thread reads RESULT, or writes, once this has returned.
        async with self._early.turn, asyncio.TaskGroup() as group:
            copied = asyncio.to_thread(self._keep_payload, promise, result_fd, payloads)
            group.create_task(to_its_end(copied), name="payload of a vote")
            group.create_task(to_its_end(asyncio.to_thread(self._stage, promise)), name="promise")
            if beside is not None:
                group.create_task(to_its_end(beside), name="beside a promise")
        if failures:
            await asyncio.to_thread(self._forget_temporaries)
            raise failures[0]
        await asyncio.to_thread(self._publish, promise)

    async def write_early(self, result_fd: int, place: Place) -> None:
        """Begin with a segment of RESULT that is there before the others: the vote waits for less then.

        Whatever is wrong with it is found, and told, by `save`.
        """
        await self._early.write(place, partial(self._payload.write_early, result_fd, place.offset, place.length))

    def holding(self, entry: Digest) -> Path | None:
        """The file that has the payload of this entry as EntryLog.append_voted wants it; None: there is none."""
        return self._payload.path if self._held == entry else None

    @property
    def _temporary(self) -> Path:
        return self._path.with_name(self._path.name + TEMPORARY_SUFFIX)

    def _forget_temporaries(self) -> None:
        self._payload.drop()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def _keep_payload(self, promise: Promise, result_fd: int, payloads: PayloadMaps) -> None:
        """Unless it is there: each attempt behind a vote promises its lock once more, and may have used RESULT anew."""
        entry = promise.entry
        self._is_new = entry is not None and (self._held != entry_hash(entry) or not self._payload.path.exists())
        if entry is not None and self._is_new:
            lengths = payloads.at(entry.lowrank_r).lengths
            self._is_right = self._payload.finish(result_fd, lengths, entry.result_hashes)

    def _stage(self, promise: Promise) -> None:
        stage_file(self._path, encode_struct(promise))

    def _publish(self, promise: Promise) -> None:
        try:
            if self._is_new:
                self._held = None
                self._payload.temporary.replace(self._payload.path)  # first: no promise stands without its payload
            self._temporary.replace(self._path)
            fsync_directory(self._path.parent)
        except OSError as error:
            self._forget_temporaries()
            raise store_error("keeping what we promise", self._path, error) from error
        if promise.entry is not None and self._is_new and self._is_right:
            self._held = entry_hash(promise.entry)

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

    async def load(self, result_fd: int, payloads: PayloadMaps) -> KeptPromise | None:
        """The promise of the daemon's last life; the payload that belongs to it is put back into RESULT.

        Raises StoreError when the file is damaged: what we promised is then unknown.
        """
        return await asyncio.to_thread(self._load, result_fd, payloads)

    def _load(self, result_fd: int, payloads: PayloadMaps) -> KeptPromise | None:
        self._forget_temporaries()  # what a crash has left: who only watches from now on would never do it
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
        entry = promise.entry
        if entry is None:
            return KeptPromise(promise, False)
        lengths = payloads.at(entry.lowrank_r).lengths
        return KeptPromise(promise, self._payload.restore(result_fd, lengths, entry.result_hashes))
