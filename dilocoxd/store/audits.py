"""Audits on disk: one folder per segment that is being checked, and those that are kept as evidence.

A folder holds `case` (wire/audit.py), `share-<place>` for each contribution in the entry's order, `before` where shares
are compared with the last result, and as evidence `result`, what the owner returned. Folders under work are forgotten
at each start; evidence stays until the operator removes it, at most EVIDENCE_MAX of it.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.store.durable import Corrupt, fsync_directory, make_directory, store_error
from dilocoxd.wire.audit import CASE_BYTES_MAX, AuditCase, decode_case, encode_case

CASE_NAME: Final = "case"
RESULT_NAME: Final = "result"
BEFORE_NAME: Final = "before"
EVIDENCE_MAX: Final = 64
"""Folders of evidence; what is found beyond is told, but not kept."""


def audits_directory(run_directory: Path) -> Path:
    """Where a site keeps its audits."""
    return run_directory / "site" / "audits"


def evidence_directory(run_directory: Path) -> Path:
    """Where a site keeps what proves a result false."""
    return run_directory / "site" / "evidence"


def share_name(place: int) -> str:
    """File of the share of the contribution in this place of the entry."""
    return f"share-{place}"


def write_case(directory: Path, case: AuditCase) -> None:
    """Raises StoreError."""
    try:
        (directory / CASE_NAME).write_bytes(encode_case(case))
    except OSError as error:
        raise store_error("writing an audit's case", directory, error) from error


def read_case(directory: Path) -> AuditCase:
    """Raises StoreError (Corrupt if it is none)."""
    path = directory / CASE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(CASE_BYTES_MAX + 1)
        return decode_case(data)
    except OSError as error:
        raise store_error("reading an audit's case", path, error) from error
    except WireError as error:
        raise Corrupt(f"{path}: {error.detail}") from error


class AuditFolders:
    """The folders of one site."""

    def __init__(self, run_directory: Path) -> None:
        self._work = audits_directory(run_directory)
        self._evidence = evidence_directory(run_directory)

    def clear(self) -> None:
        """Forget audits that an end of the process cut off."""
        shutil.rmtree(self._work, ignore_errors=True)

    def begin(self, round_index: int, segment: int) -> Path:
        """An empty folder. Raises StoreError."""
        try:
            make_directory(self._work)
            # Another attempt of the round may still be under audit.
            return Path(tempfile.mkdtemp(prefix=f"{round_index}-{segment}-", dir=self._work))
        except OSError as error:
            raise store_error("beginning an audit", self._work, error) from error

    def forget(self, directory: Path) -> None:
        """The audit is over."""
        shutil.rmtree(directory, ignore_errors=True)

    def keep(self, directory: Path) -> Path | None:
        """Make this folder evidence, durably; where it is then. None: there is no room for more. Raises StoreError."""
        path = self._evidence / directory.name
        try:
            make_directory(self._evidence)
            if path.exists() or len(list(self._evidence.iterdir())) >= EVIDENCE_MAX:
                return path if path.exists() else None
            for file in directory.iterdir():
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            directory.replace(path)
            fsync_directory(self._evidence)
        except OSError as error:
            raise store_error("keeping evidence", path, error) from error
        return path

    def kept(self) -> list[Path]:
        """Folders of evidence, sorted. Raises StoreError."""
        try:
            return sorted(self._evidence.iterdir()) if self._evidence.exists() else []
        except OSError as error:
            raise store_error("looking at evidence", self._evidence, error) from error


def read_file(path: Path, length: int) -> bytes:
    """Exactly `length` bytes. Raises StoreError (Corrupt if the file has another length)."""
    try:
        with path.open("rb") as file:
            data = file.read(length + 1)
    except OSError as error:
        raise store_error("reading an audit's file", path, error) from error
    if len(data) != length:
        raise Corrupt(f"{path}: has another length than {length} bytes")
    return data
