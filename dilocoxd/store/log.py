"""The log of committed entries: one file per entry, appended in order, bound by the hash chain.

Decides what the chain on this disk is: the longest undamaged run of records from genesis. A record appears by an
atomic rename after one fsync, so a crash leaves it whole or absent; a damaged *last* record (torn by a power loss) is
cut at start, damage further down is a StoreError, because cutting it would drop entries that peers count on.
Source: docs/internals.md section 5, ADR 0005. One process (the daemon) writes; any may read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.errors import ConfigError, StoreError, reason_of
from dilocoxd.ids import Digest, RoundIndex, RunId
from dilocoxd.store.durable import (
    NO_LINKS,
    TEMPORARY_SUFFIX,
    Corrupt,
    fsync_directory,
    make_directory,
    store_error,
    write_all,
)
from dilocoxd.store.log_record import (
    PAYLOAD_AT,
    PIECE_BYTES,
    Record,
    check_payload,
    encode_around,
    encode_front,
    read_record,
    read_result,
)
from dilocoxd.wire.entry import SignedEntry, entry_hash

SUFFIX = ".entry"


@dataclass(frozen=True, slots=True)
class Payload:
    """Where the result payload of an entry lies on disk (what ApplyEntry needs)."""

    path: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PayloadSource:
    """Payload to be appended: `lengths[i]` bytes per result segment, back to back from `offset` of `fd`."""

    fd: int
    offset: int
    lengths: Sequence[int]


class EntryLog:
    """The chain on disk. Opening checks form and chain of all entries and cuts a torn tail (`cut_tail` says what).

    Raises StoreError when a record in the middle is damaged or does not continue the chain.
    """

    def __init__(self, directory: Path, run_id: RunId, genesis: Digest) -> None:
        self._directory = directory
        self._run_id = run_id
        self._genesis = genesis
        self._hashes: list[Digest] = []
        self._bare_below = 0
        """No entry below has a payload any more, as far as retention knows."""
        self._has_links = True
        """Files of votes can be linked into the log, as far as we know."""
        self.cut_tail: str = ""
        """Empty, or one sentence about the record that was cut at start."""
        try:
            make_directory(directory)
            for leftover in directory.glob(f"*{TEMPORARY_SUFFIX}"):
                leftover.unlink()
            self._open()
        except OSError as error:
            raise store_error("opening the log", directory, error) from error

    @property
    def height(self) -> int:
        """Number of entries = index of the newest state."""
        return len(self._hashes)

    @property
    def head(self) -> Digest:
        """Hash of the last entry, or the genesis hash."""
        return self._hashes[-1] if self._hashes else self._genesis

    def hash_at(self, height: int) -> Digest:
        """Chain head when the log was `height` entries long. Raises IndexError beyond the end."""
        return self._hashes[height - 1] if height else self._genesis

    def entry(self, index: int) -> SignedEntry:
        """Entry `index`. Raises StoreError if it is damaged or not there."""
        return self._read(index).signed

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[SignedEntry]:
        """Entries start..stop-1 (default: to the end), read one by one."""
        for index in range(start, self.height if stop is None else min(stop, self.height)):
            yield self.entry(index)

    def has_payload(self, index: int) -> bool:
        """False for entries whose payload was dropped by retention."""
        return self._read(index).has_payload

    def payload(self, index: int) -> Payload:
        """Where the payload of entry `index` lies. Raises StoreError if it was dropped."""
        record = self._with_payload(index)
        return Payload(str(self.path(index)), record.payload_offset, record.payload_bytes)

    def result(self, index: int, segment: int) -> bytes:
        """The result of a segment of entry `index`, as it was voted for. Raises StoreError if the payload was dropped,
        cannot be read or is damaged."""
        record = self._with_payload(index)
        try:
            return read_result(self.path(index), record, segment)
        except OSError as error:
            raise StoreError(
                f"{self.path(index)}: the payload of entry {index} cannot be read ({reason_of(error)})"
            ) from error

    def append(self, signed: SignedEntry, source: PayloadSource) -> Digest:
        """Add the next entry with its payload, durably, and return the new head.

        Raises StoreError, and leaves the log as it was, if the entry does not continue the chain, a segment of the
        payload does not have its hash, or the disk is full (DiskFull).
        """
        index = self.height
        self._check_next(signed, index, self.head)
        lengths = tuple(source.lengths)
        if len(lengths) != len(signed.entry.result_hashes):
            raise StoreError(
                f"entry {index} names {len(signed.entry.result_hashes)} result segments, the payload has {len(lengths)}"
            )
        self._write(signed, lengths, source)
        return self.head

    def append_voted(self, signed: SignedEntry, lengths: Sequence[int], voted: Path) -> bool:
        """Add the next entry, durably, by a link to a file that has its payload at PAYLOAD_AT, durable already, each
        segment with its hash. False: files here cannot be linked, this one is not there any more, or it is linked
        somewhere; nothing is changed.

        After the votes only what they add is written. Raises StoreError, and leaves the log as it was, if the entry
        does not continue the chain, or the disk is full (DiskFull).
        """
        self._check_next(signed, self.height, self.head)
        path = self.path(self.height)
        try:
            if not (self._has_links and _complete(voted, signed, tuple(lengths))):
                return False
            try:
                os.link(voted, path)
            except OSError as error:
                self._has_links = error.errno not in NO_LINKS
                return False  # the payload is copied
            try:
                fsync_directory(self._directory)
            except OSError:
                path.unlink(missing_ok=True)  # it must not come back later
                raise
        except OSError as error:
            raise store_error(f"appending entry {self.height} to the log", path, error) from error
        self._hashes.append(entry_hash(signed.entry))
        return True

    def append_bare(self, signed: SignedEntry, lengths: Sequence[int]) -> Digest:
        """Add the next entry without its payload: a newcomer's snapshot makes it unnecessary. Errors as `append`."""
        index = self.height
        self._check_next(signed, index, self.head)
        self._write(signed, tuple(lengths), None)
        return self.head

    def restore_payload(self, index: int, source: PayloadSource) -> None:
        """The payload of entry `index`, which was dropped, is there again, durably; retention may drop it anew.

        Raises StoreError, and leaves the log as it was, if a segment does not have its hash or the disk is full.
        """
        record, path = self._read(index), self.path(index)
        try:
            self._put(path, record.signed, tuple(source.lengths), source)
        except OSError as error:
            raise store_error(f"restoring the payload of entry {index}", path, error) from error
        self._bare_below = min(self._bare_below, index)

    def _put(self, path: Path, signed: SignedEntry, lengths: tuple[int, ...], source: PayloadSource | None) -> None:
        """A whole record in its place, durably; nothing half is left. Raises OSError, StoreError."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                offset = write_all(fd, encode_front(signed, lengths, has_payload=source is not None), 0)
                if source is not None:
                    _copy_payload(fd, offset, source, signed.entry.result_hashes)
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.replace(path)
        except (OSError, StoreError):
            temporary.unlink(missing_ok=True)
            raise
        fsync_directory(self._directory)

    def _write(self, signed: SignedEntry, lengths: tuple[int, ...], source: PayloadSource | None) -> None:
        index = self.height
        path = self.path(index)
        try:
            self._put(path, signed, lengths, source)
        except OSError as error:
            # The rename may have happened before the directory's fsync failed: the entry must not come back later.
            path.unlink(missing_ok=True)
            raise store_error(f"appending entry {index} ({sum(lengths)} bytes) to the log", path, error) from error
        self._hashes.append(entry_hash(signed.entry))

    def roll_back(self, height: int) -> None:
        """Drop all entries from `height` on, newest first, so that a crash in between leaves a valid chain."""
        if not 0 <= height <= self.height:
            raise StoreError(f"cannot roll back to height {height}: the log has {self.height} entries")
        try:
            while self.height > height:
                self.path(self.height - 1).unlink(missing_ok=True)
                fsync_directory(self._directory)
                self._hashes.pop()
            self._bare_below = min(self._bare_below, height)
        except OSError as error:
            raise store_error(f"rolling the log back to {height}", self._directory, error) from error

    @property
    def payloads_kept_from(self) -> int:
        """Retention has dropped the payloads of all entries below."""
        return self._bare_below

    def drop_payloads(self, before: int) -> int:
        """Retention: drop the payloads (not the entries) below `before`; returns the bytes freed."""
        freed = 0
        for index in range(self._bare_below, min(before, self.height)):
            record = self._read(index)
            if not record.has_payload:
                continue
            path = self.path(index)
            temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
            try:
                with temporary.open("wb") as file:
                    file.write(encode_front(record.signed, record.lengths, has_payload=False))
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            except OSError as error:
                temporary.unlink(missing_ok=True)
                raise store_error(f"dropping the payload of entry {index}", path, error) from error
            freed += record.payload_bytes
        self._bare_below = max(self._bare_below, min(before, self.height))
        fsync_directory(self._directory)
        return freed

    def verify(self) -> list[str]:
        """Read everything, payloads too; one sentence per problem, empty = the log is sound."""
        problems: list[str] = []
        parent: Digest = self._genesis
        for index in range(self.height):
            try:
                record = self._read(index)
                self._check_next(record.signed, index, parent)
                if record.has_payload:
                    check_payload(self.path(index), record)
                parent = entry_hash(record.signed.entry)
            except StoreError as error:
                problems.append(str(error))
                parent = self._hashes[index]
        return problems

    def path(self, index: int) -> Path:
        """File of the record of entry `index`."""
        return self._directory / f"{index:012d}{SUFFIX}"

    def _read(self, index: int) -> Record:
        if not 0 <= index < self.height:
            raise StoreError(f"entry {index} is not in the log, which has {self.height} entries")
        path = self.path(index)
        try:
            return read_record(path)
        except OSError as error:
            raise store_error(f"reading entry {index}", path, error) from error

    def _with_payload(self, index: int) -> Record:
        record = self._read(index)
        if not record.has_payload:
            raise StoreError(f"payload of entry {index} was dropped by retention")
        return record

    def _open(self) -> None:
        count = self._count()
        for index in range(count):
            path = self.path(index)
            try:
                record = read_record(path)
                self._check_run(record.signed, index)
                self._check_next(record.signed, index, self.head)
                if index == count - 1 and record.has_payload:
                    check_payload(path, record)
            except FileNotFoundError as error:
                raise StoreError(self._middle(index, count, f"{path} is missing")) from error
            except StoreError as error:
                if index < count - 1 or not isinstance(error, Corrupt):
                    raise StoreError(self._middle(index, count, str(error))) from error
                path.unlink()
                fsync_directory(self._directory)
                self.cut_tail = f"the last log record (entry {index}) was damaged and has been cut: {error}"
                return
            self._hashes.append(entry_hash(record.signed.entry))

    def _middle(self, index: int, count: int, why: str) -> str:
        return (
            f"the log is damaged at entry {index} of {count}: {why}; restore that file from a backup, or move"
            f" {self._directory} away and start again: other sites give the log once more, while they have it"
        )

    def _check_run(self, signed: SignedEntry, index: int) -> None:
        theirs = signed.entry.run_id
        if index == 0 and theirs != self._run_id:
            raise ConfigError(
                f"{self._directory}: the log is that of run {theirs}, but run.toml describes {self._run_id}: run.toml"
                " was changed, and the description of a run is fixed; undo the change, or make a new run with"
                " `dilocoxd start run.toml`"
            )

    def _count(self) -> int:
        names = [path.name.removesuffix(SUFFIX) for path in self._directory.glob(f"*{SUFFIX}")]
        return max((int(name) for name in names if name.isdecimal()), default=-1) + 1

    def _check_next(self, signed: SignedEntry, index: int, parent: Digest) -> None:
        entry = signed.entry
        if entry.run_id != self._run_id:
            raise StoreError(f"entry {index} belongs to run {entry.run_id}, this is {self._run_id}")
        if entry.round != RoundIndex(index):
            raise StoreError(f"entry {entry.round} cannot be number {index} of the chain")
        if entry.parent != parent:
            raise StoreError(
                f"entry {index} continues {entry.parent.hex()[:16]}, the chain's head there is {parent.hex()[:16]}"
            )


def _complete(voted: Path, signed: SignedEntry, lengths: tuple[int, ...]) -> bool:
    """Make a whole record, synced, of a file that has only a payload. False: it is a record somewhere, which must not
    be written again, or somebody has removed it. Raises OSError."""
    head, rest = encode_around(signed, lengths)
    try:
        fd = os.open(voted, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(fd).st_nlink != 1:
            return False
        os.ftruncate(fd, write_all(fd, rest, PAYLOAD_AT + sum(lengths)))
        write_all(fd, head, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True


def _copy_payload(fd: int, offset: int, source: PayloadSource, hashes: Sequence[bytes]) -> None:
    buffer = bytearray(PIECE_BYTES)
    view = memoryview(buffer)
    position = source.offset
    for index, (length, expected) in enumerate(zip(source.lengths, hashes, strict=True)):
        digest = hashlib.sha256()
        left = length
        while left:
            count = os.preadv(source.fd, [view[: min(left, PIECE_BYTES)]], position)
            if not count:
                raise StoreError(f"payload ends inside result segment {index}")
            offset = write_all(fd, view[:count], offset)
            digest.update(view[:count])
            position += count
            left -= count
        if digest.digest() != expected:
            raise StoreError(f"result segment {index} does not have the hash that the entry names")
