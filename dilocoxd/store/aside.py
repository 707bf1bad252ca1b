"""Keeps the records of a branch that is given up, until the better branch is complete in the log.

A branch that was checked can still turn out to be false, or its payloads may be had from nobody. Then the log goes back
to what it was: an acknowledged entry is lost to a heavier chain only, never to the promise of one (rule R-d). Records
are hard links, so keeping them costs no space. Source: docs/internals.md 3.10.
"""

from __future__ import annotations

import os
from pathlib import Path

from dilocoxd.store.durable import store_error
from dilocoxd.store.log import EntryLog, Source
from dilocoxd.store.record import read_record
from dilocoxd.wire.entry import SignedEntry


class Aside:
    """`directory` lies beside the log, on the same file system."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, log: EntryLog, height: int) -> None:
        """Keep the records from `height` on; what was kept before is forgotten. Raises StoreError."""
        try:
            self.clear()
            self._directory.mkdir(parents=True, exist_ok=True)
            for index in range(height, log.height):
                path = log.path(index)
                os.link(path, self._directory / path.name)
        except OSError as error:
            raise store_error("keeping the entries that a fork drops", self._directory, error) from error

    def entries(self) -> list[SignedEntry]:
        """What is kept, in order. Raises StoreError."""
        try:
            return [read_record(path).signed for path in self._paths()]
        except OSError as error:
            raise store_error("reading the entries that a fork drops", self._directory, error) from error

    def put_back(self, log: EntryLog) -> None:
        """Append what was kept; the log must have been rolled back to that height. Raises StoreError."""
        for path in self._paths():
            try:
                record = read_record(path)
                if not record.has_payload:
                    log.append_bare(record.signed, record.lengths)
                    continue
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    log.append(record.signed, Source(fd, record.payload_offset, record.lengths))
                finally:
                    os.close(fd)
            except OSError as error:
                raise store_error("putting back an entry", path, error) from error

    def clear(self) -> None:
        """Forget all of it, newest first: what is left by a crash still starts where it did."""
        for path in reversed(self._paths()):
            path.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self._directory.iterdir()) if self._directory.is_dir() else []
