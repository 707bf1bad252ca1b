"""Audits on disk: one folder per segment that is being checked, and those that are kept as evidence.

A folder holds `case` (wire/audit.py), `share-<place>` for each contribution in the entry's order, `before` where shares
are compared with the last result, and as evidence `result`, what the owner returned, and `votes`, those with which the
log had the entry. Folders under work are forgotten at each start; evidence stays until the operator removes it, or as
long as there are no more than EVIDENCE_MAX of it.
"""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError, WireError
from dilocoxd.store.durable import Corrupt, fsync_directory, make_directory, store_error
from dilocoxd.wire.audit import (
    CASE_BYTES_MAX,
    AuditCase,
    CommitVotes,
    decode_case,
    decode_commit_votes,
    encode_case,
    encode_commit_votes,
)
from dilocoxd.wire.entry import SignedVote

CASE_NAME: Final = "case"
RESULT_NAME: Final = "result"
BEFORE_NAME: Final = "before"
VOTES_NAME: Final = "votes"
EVIDENCE_MAX: Final = 64
"""Folders of evidence, megabytes each."""


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


def write_votes(directory: Path, votes: tuple[SignedVote, ...]) -> None:
    """Raises StoreError."""
    try:
        (directory / VOTES_NAME).write_bytes(encode_commit_votes(CommitVotes(votes)))
    except OSError as error:
        raise store_error("writing the votes beside evidence", directory, error) from error


def read_votes(directory: Path) -> tuple[SignedVote, ...]:
    """Empty if there are none: the entry was not committed, or an older daemon kept the folder. Raises StoreError
    (Corrupt if the file is none of votes)."""
    path = directory / VOTES_NAME
    try:
        with path.open("rb") as file:
            data = file.read(CASE_BYTES_MAX + 1)
        return decode_commit_votes(data).votes
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise store_error("reading the votes beside evidence", path, error) from error
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

    def keep(self, directory: Path) -> Path:
        """Make this folder evidence, durably; where it is then. What is newest can still be undone, so it always has
        room: of those named most often the oldest folder goes. Raises StoreError."""
        path = self._evidence / directory.name
        try:
            make_directory(self._evidence)
            if path.exists():
                return path
            for file in directory.iterdir():
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            directory.replace(path)
            self._make_room(path)
            fsync_directory(self._evidence)
        except OSError as error:
            raise store_error("keeping evidence", path, error) from error
        return path

    def _make_room(self, newest: Path) -> None:
        """Who lies often does not push out what is kept of others. A folder that cannot be read goes first."""
        folders = [one for one in self._evidence.iterdir() if one != newest]
        if len(folders) < EVIDENCE_MAX:
            return
        by_owner: dict[str, list[tuple[int, Path]]] = {}
        broken: list[Path] = []
        for folder in folders:
            try:
                case = read_case(folder)
                by_owner.setdefault(case.owner, []).append((int(case.entry.round), folder))
            except StoreError:
                broken.append(folder)
        while len(folders) >= EVIDENCE_MAX:
            gone = broken.pop() if broken else _oldest_of_most(by_owner)
            folders.remove(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def kept(self) -> list[Path]:
        """Folders of evidence, sorted. Raises StoreError."""
        try:
            return sorted(self._evidence.iterdir()) if self._evidence.exists() else []
        except OSError as error:
            raise store_error("looking at evidence", self._evidence, error) from error


def _oldest_of_most(by_owner: dict[str, list[tuple[int, Path]]]) -> Path:
    """Taken out of it."""
    owner = max(by_owner, key=lambda one: (len(by_owner[one]), one))
    oldest = min(by_owner[owner])
    by_owner[owner].remove(oldest)
    return oldest[1]


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
