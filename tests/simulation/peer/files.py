"""A simulated peer's disk on real files: the real log and the real promise file, in a directory in memory if possible.

Crashes leave what a power loss would leave: nothing, a half-written temporary file, a damaged record, or all of it. A
full disk is the file system's error in the middle of a write.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.chain.promise_file import PromiseFile
from dilocoxd.daemon.recovery.driver import finish_turn_back
from dilocoxd.machines.recovery.rollback import Choice
from dilocoxd.machines.round.outputs import Promise
from dilocoxd.store import durable, log as log_module
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.store.log_record import PAYLOAD_AT, encode_around
from dilocoxd.wire.entry import entry_hash
from tests.simulation.peer.disk import GENESIS, RUN_ID, Crashed, Disk, Payload, Stored

MEMORY = Path("/dev/shm")


class FileDisk(Disk):
    """`table`: payload bytes, [pass][segment]."""

    def __init__(self, name: str, table: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        where = MEMORY if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix=f"simulation-{name}-", dir=where))
        self._places = [(index, segment) for index, row in enumerate(table) for segment in range(len(row))]
        self._maps = PayloadMaps({0: table})
        self._map = self._maps.at(0)
        self._fd = os.memfd_create(f"simulation-{name}", os.MFD_CLOEXEC)
        self._promises = PromiseFile(self.directory)
        self._log: EntryLog | None = None
        self._aside = Aside(self.directory / "aside")

    def open(self) -> Choice | None:
        choices: list[Choice] = []
        self._promises = PromiseFile(self.directory)  # what a process knew of its files ends with it
        self._log = EntryLog(self.directory / "log", RUN_ID, GENESIS)
        finish_turn_back(self._log, self._aside, self.directory / "snapshots", choices.append, self.adopted)
        assert not self._log.verify(), "a log that was opened is sound"
        self._read_log()
        kept = self._promises._load(self._fd, self._maps)
        self.promise, self.promise_payload = None, {}
        if kept is not None:
            self.promise = kept.promise
            self.promise_payload = self._from_bytes(os.pread(self._fd, self._map.total_bytes, 0))
            assert not kept.results_held or self.kept() == kept, "the promise's payload is what was voted for"
        return choices[0] if choices else None

    def _read_log(self) -> None:
        assert self._log is not None
        self.log = [Stored(self._log.entry(index), self._read(index)) for index in range(self._log.height)]

    def set_aside(self, height: int) -> None:
        assert self._log is not None
        self._aside.keep(self._log, height)
        self.roll_back(height)

    def put_back(self) -> None:
        assert self._log is not None
        self._aside.put_back(self._log, self.directory / "snapshots")
        self._read_log()

    def clear_aside(self) -> None:
        self._aside.clear()

    def close(self) -> None:
        os.close(self._fd)
        shutil.rmtree(self.directory, ignore_errors=True)

    def append(self, stored: Stored, crash: str = "") -> None:
        if crash == "before":
            raise Crashed
        path = self.directory / "log" / f"{len(self.log):012d}.entry"
        voted = self._promises.holding(entry_hash(stored.signed.entry))
        if crash == "torn":
            path.with_name(path.name + durable.TEMPORARY_SUFFIX).write_bytes(b"dlxlog1\n and then the power failed")
            if voted is not None and voted.stat().st_nlink == 1:
                self._tear(voted, stored)
            raise Crashed
        assert self._log is not None
        os.pwrite(self._fd, self._to_bytes(stored.payload), 0)
        with _full(log_module, self.is_full):
            if voted is None or not self._log.append_voted(stored.signed, self._map.lengths, voted):
                self._log.append(stored.signed, PayloadSource(self._fd, 0, self._map.lengths))
        if crash == "torn_tail":
            os.truncate(path, path.stat().st_size * 2 // 3)
            raise Crashed
        self.log.append(stored)
        if crash == "after":
            raise Crashed

    def _tear(self, voted: Path, stored: Stored) -> None:
        """The power fails while the file of a vote is made the log's record."""
        head, rest = encode_around(stored.signed, self._map.lengths)
        with voted.open("r+b") as file:
            file.write(head)
            file.seek(PAYLOAD_AT + self._map.total_bytes)
            file.write(rest[: len(rest) // 2])

    def roll_back(self, height: int) -> None:
        assert self._log is not None
        self._log.roll_back(height)
        super().roll_back(height)

    def lose_log(self) -> None:
        shutil.rmtree(self.directory / "log", ignore_errors=True)
        super().lose_log()

    def save_promise(self, promise: Promise, payload: Payload) -> None:
        with _full(durable, self.is_full):  # what an attempt left there, or the result before
            self._promises._payload.write_early(self._fd, 0, self._map.lengths[0])
        os.pwrite(self._fd, self._to_bytes(payload).ljust(self._map.total_bytes, b"\0"), 0)
        with _full(os, self.is_full, "fsync"):
            self._promises._keep_payload(promise, self._fd, self._maps)
            self._promises._stage(promise)
            self._promises._publish(promise)
        self.promise, self.promise_payload = promise, payload

    def _read(self, index: int) -> Payload:
        assert self._log is not None
        place = self._log.payload(index)
        with Path(place.path).open("rb") as file:
            file.seek(place.offset)
            return self._from_bytes(file.read(place.length))

    def _to_bytes(self, payload: Payload) -> bytes:
        return b"".join(data for _, data in sorted(payload.items()))

    def _from_bytes(self, data: bytes) -> Payload:
        found, start = {}, 0
        for place, length in zip(self._places, self._map.lengths, strict=True):
            found[place] = data[start : start + length]
            start += length
        return found


def _full(module: Any, is_full: bool, name: str = "write_all") -> Any:
    """While it lasts, the file system has no space for this call."""

    def fails(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return mock.patch.object(module, name, fails if is_full else getattr(module, name))
