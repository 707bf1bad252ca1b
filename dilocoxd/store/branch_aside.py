"""Keeps the branch that is given up, entries and snapshots, until the better branch is complete in the log.

A branch that was checked can still turn out to be false, or its payloads may be had from nobody. Then the log goes back
to what it was: an acknowledged entry is lost to a heavier chain only, never to the promise of one (rule R-d). Records
and snapshots are hard links, so keeping them costs no space (copies, on a file system without links). Source:
protocol/09-catching-up.md, L14, L15.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from dilocoxd.store.durable import Corrupt, fsync_directory, link_or_copy, make_directory, store_error
from dilocoxd.store.log import SUFFIX, EntryLog, PayloadSource
from dilocoxd.store.log_record import read_record
from dilocoxd.store.snapshots import link_snapshot, list_rounds
from dilocoxd.wire.entry import SignedEntry


class Aside:
    """`directory` lies beside the log and the snapshots, on the same file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.changing = threading.Lock()
        """Held while the log is cut, and while retention drops snapshots and payloads: it writes the record of an entry
        anew, and that of one that was cut meanwhile would be there again, in the place of what follows now."""

    def is_empty(self) -> bool:
        """Whether no branch is kept. Blocks."""
        return not self._paths()

    def keep(self, log: EntryLog, height: int, snapshots: Sequence[Path] = ()) -> None:
        """Keep the records from `height` on, and these snapshots of them; what was kept before is forgotten.

        Durable when this returns: only then may the log be cut. Raises StoreError.
        """
        try:
            self.clear()
            make_directory(self._directory)
            for snapshot in snapshots:
                try:
                    link_snapshot(snapshot, self._directory / snapshot.name)
                except Corrupt:
                    continue  # retention has dropped it meanwhile, or it is damaged: nothing leads on from it
            for index in range(height, log.height):
                path = log.path(index)
                link_or_copy(path, self._directory / path.name)
            fsync_directory(self._directory)
        except OSError as error:
            raise store_error("keeping the entries that a fork drops", self._directory, error) from error

    def entries(self) -> list[SignedEntry]:
        """What is kept, in order. Raises StoreError."""
        try:
            return [read_record(path).signed for path in self._paths()]
        except OSError as error:
            raise store_error("reading the entries that a fork drops", self._directory, error) from error

    def leave(self, log: EntryLog, height: int, snapshots: Sequence[Path]) -> None:
        """Keep, as above, and cut the log. Raises StoreError."""
        with self.changing:
            self.keep(log, height, snapshots)
            log.roll_back(height)

    def put_back(self, log: EntryLog, snapshots: Path) -> None:
        """Append what was kept; the log must have been rolled back to that height. Raises StoreError.

        Its snapshots are in their place again, whatever lay there. Can be repeated after a crash.
        """
        for number in list_rounds(self._directory):
            link_snapshot(self._directory / str(number), snapshots / str(number))
        for path in self._paths():
            try:
                record = read_record(path)
                if not record.has_payload:
                    log.append_bare(record.signed, record.lengths)
                    continue
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    log.append(record.signed, PayloadSource(fd, record.payload_offset, record.lengths))
                finally:
                    os.close(fd)
            except OSError as error:
                raise store_error("putting back an entry", path, error) from error

    def clear(self) -> None:
        """Forget all of it, newest entry first: what is left by a crash still starts where it did."""
        if not self._directory.is_dir():
            return
        for path in reversed(self._paths()):
            path.unlink()
        for path in self._directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()  # a file: of a copy that a crash cut short
        fsync_directory(self._directory)

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob(f"*{SUFFIX}"))
