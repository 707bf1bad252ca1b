"""Kept work: what this site contributed to recent entries, so that a fork that drops one of them loses nothing.

One file per phase, written before the site votes for an entry that names the phase: its payload of the last pass, then
the results of the passes before (they say what the payload stands for), then what says how much of it was counted
(outerworker/results/kept.py). The front has the payload's content: the work of its own phase, and of earlier ones that
the error feedback still had. Layout: _FRONT, pairs of _ITEM, body, a _PART for each of its pieces, sha256 of all but
the body. Its payload is written, and hashed, while the exchange runs: everybody waits for the vote. What of it is owed:
machines/phase/owed_work.py. Source: docs/internals.md 4.3.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest, PhaseId
from dilocoxd.store.durable import TEMPORARY_SUFFIX, Corrupt, EarlyWriter, fsync_directory, make_directory, store_error

SUFFIX: Final = ".work"
_FRONT: Final = struct.Struct("<8sQQ32sQQQQQ")
_ITEM: Final = struct.Struct("<Qq")
_PART: Final = struct.Struct("<Q32s")
"""Length and sha256 of a piece."""
_MAGIC: Final = b"dlxwork4"
_DIGEST_BYTES: Final = 32
_PIECE_BYTES: Final = 1 << 20
_ITEMS_MAX: Final = 1 << 16
"""As many as the outer worker can be told of (wire/local/outer_worker.py)."""
_PIECES_MAX: Final = 1 << 17
"""A body has two for each segment and one for each pass before, and one more: wire/limits.py, RESULT_HASHES_MAX."""


@dataclass(frozen=True, slots=True)
class KeptWork:
    """What a file says of itself; its body lies at `offset`."""

    phase: PhaseId
    round: int
    entry_hash: Digest
    num_passes: int = 1
    body_bytes: int = 0
    content: tuple[tuple[PhaseId, int], ...] = ()
    """(phase, how often its work is in the payload), sorted; once each, as a rule."""
    place: int = 0
    """Of our contribution among those of the entry."""
    num_pieces: int = 0
    """That make the body."""

    @property
    def offset(self) -> int:
        return _FRONT.size + _ITEM.size * len(self.content)


@dataclass(frozen=True, slots=True)
class Piece:
    """`length` bytes from `offset` of an open file."""

    fd: int
    offset: int
    length: int


def work_directory(run_directory: Path) -> Path:
    """Where a site keeps its work."""
    return run_directory / "site" / "work"


def work_path(directory: Path, phase: PhaseId) -> Path:
    """Where the work of a phase is kept."""
    return directory / f"{phase}{SUFFIX}"


def read_front(path: Path) -> KeptWork:
    """Raises FileNotFoundError, StoreError (Corrupt if it is not such a file, or cut off)."""
    with opened_work(path) as file:
        return front_of(file, path)


@contextmanager
def opened_work(path: Path) -> Iterator[BinaryIO]:
    """Kept work to read from, whatever lies at `path` meanwhile. Raises FileNotFoundError, and StoreError for whatever
    else the system refuses until it is closed."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise
    except OSError as error:
        raise store_error("reading kept work", path, error) from error


def front_of(file: BinaryIO, path: Path) -> KeptWork:
    """The front of a file that is open at its start, whatever lies at `path` by now. What a damaged front says of its
    length takes no memory. Raises OSError, Corrupt."""
    front = file.read(_FRONT.size)
    if len(front) < _FRONT.size:
        raise Corrupt(f"{path}: cut off")
    magic, phase, round_index, entry, num_passes, length, place, num_items, num_pieces = _FRONT.unpack(front)
    if magic != _MAGIC:
        raise Corrupt(f"{path}: holds no kept work, or that of another version of dilocoxd")
    expected = _FRONT.size + _ITEM.size * num_items + length + _PART.size * num_pieces + _DIGEST_BYTES
    is_whole = os.fstat(file.fileno()).st_size == expected and num_items <= _ITEMS_MAX and num_pieces <= _PIECES_MAX
    if not is_whole or len(items := file.read(_ITEM.size * num_items)) < _ITEM.size * num_items:
        raise Corrupt(f"{path}: damaged, or cut off")
    content = tuple((PhaseId(number), times) for number, times in _ITEM.iter_unpack(items))
    return KeptWork(PhaseId(phase), round_index, Digest(entry), num_passes, length, content, place, num_pieces)


def check_work(path: Path) -> KeptWork:
    """Read all and compare with the hashes. Raises FileNotFoundError, StoreError."""
    with opened_work(path) as file:
        return check_open(file, path)


def check_open(file: BinaryIO, path: Path) -> KeptWork:
    """The same of a file that is open at its start: what is read from it later was checked. Raises OSError, Corrupt."""
    kept = front_of(file, path)
    file.seek(0)
    front = file.read(kept.offset)
    file.seek(kept.body_bytes, os.SEEK_CUR)
    parts, expected = file.read(_PART.size * kept.num_pieces), file.read(_DIGEST_BYTES)
    if hashlib.sha256(front + parts).digest() != expected:
        raise Corrupt(f"{path}: damaged (sha256 differs)")
    if sum(length for length, _ in _PART.iter_unpack(parts)) != kept.body_bytes:
        raise Corrupt(f"{path}: damaged (its pieces do not make its body)")
    offset = kept.offset
    for length, digest in _PART.iter_unpack(parts):
        if hash_of_stretch(file.fileno(), offset, length) != digest:
            raise Corrupt(f"{path}: damaged (sha256 differs)")
        offset += length
    return kept


def hash_of_stretch(fd: int, offset: int, length: int) -> bytes:
    """sha256 of so many bytes of an open file. Raises OSError, Corrupt if it has fewer."""
    digest, end = hashlib.sha256(), offset + length
    while offset < end:
        data = os.pread(fd, min(_PIECE_BYTES, end - offset), offset)
        if not data:
            raise Corrupt("kept work ends too early")
        digest.update(data)
        offset += len(data)
    return digest.digest()


class KeptWorkStore:
    """The kept files of this site."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._next = directory / f"next{SUFFIX}{TEMPORARY_SUFFIX}"
        self._writer = EarlyWriter(0o600)
        self._writing = threading.Lock()

    def find(self, phase: PhaseId) -> KeptWork | None:
        """What is kept of a phase; None if nothing (sound) is."""
        try:
            kept = read_front(work_path(self._directory, phase))
        except (FileNotFoundError, Corrupt):
            return None
        return kept if kept.phase == phase else None

    def find_whole(self, phase: PhaseId) -> KeptWork | None:
        """The same, after reading all of it: None also if its body is damaged, or cannot be read."""
        try:
            kept = check_work(work_path(self._directory, phase))
        except (FileNotFoundError, StoreError):
            return None
        return kept if kept.phase == phase else None

    def contents(self) -> dict[PhaseId, dict[PhaseId, int]]:
        """The content of each (sound) file, by phase. Raises StoreError."""
        return {work.phase: dict(work.content) for work in self._all()}

    def _all(self) -> list[KeptWork]:
        found = map(self.find, self.phases())
        return [work for work in found if work is not None]

    def phases(self) -> list[PhaseId]:
        """Of which there is a file, sound or not: we voted for entries that name them, or meant to. Other files are not
        ours. Raises StoreError."""
        try:
            paths = list(self._directory.glob(f"*{SUFFIX}"))
        except OSError as error:
            raise store_error("looking at kept work", self._directory, error) from error
        named = [(path, PhaseId(int(path.stem))) for path in paths if path.stem.isdecimal()]
        return [phase for path, phase in named if path == work_path(self._directory, phase)]

    def clear_unfinished(self) -> None:
        """What a crash has left half written, and what was begun early; no work is lost. Raises StoreError."""
        with self._writing:
            self._writer.drop()
            try:
                for path in self._directory.glob(f"*{SUFFIX}{TEMPORARY_SUFFIX}"):
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise store_error("clearing unfinished work", self._directory, error) from error

    def forget(self, phase: PhaseId) -> None:
        """Its work is not to be made good, whatever becomes of the chain. Raises StoreError."""
        try:
            work_path(self._directory, phase).unlink(missing_ok=True)
        except OSError as error:
            raise store_error("forgetting kept work", self._directory, error) from error

    def keep_early(self, piece: Piece, at: int, num_items: int) -> None:
        """Write what will probably be in the body of the next work, from its byte `at` on, whose content has
        `num_items`. What fails is told by `keep`."""
        start = _FRONT.size + _ITEM.size * num_items + at
        with self._writing:
            try:
                make_directory(self._directory)
                self._writer.open(self._next)
                self._writer.put(piece.fd, piece.offset, piece.length, start)
                self._writer.sync_early()
            except (OSError, EOFError):
                self._writer.drop()

    def keep(self, work: KeptWork, body: Sequence[Piece]) -> None:
        """Durable when this returns; replaces what an earlier attempt kept. Raises StoreError (DiskFull)."""
        path = work_path(self._directory, work.phase)
        length = sum(piece.length for piece in body)
        numbers = (work.num_passes, length, work.place, len(work.content), len(body))
        front = _FRONT.pack(_MAGIC, work.phase, work.round, work.entry_hash, *numbers) + b"".join(
            _ITEM.pack(*item) for item in work.content
        )
        with self._writing:
            try:
                make_directory(self._directory)
                self._writer.open(self._next)
                offset, found = self._writer.write(front, 0), []
                for piece in body:
                    digest = self._writer.put(piece.fd, piece.offset, piece.length, offset)
                    found.append(_PART.pack(piece.length, digest))
                    offset += piece.length
                parts = b"".join(found)
                self._writer.finish(self._writer.write(parts + hashlib.sha256(front + parts).digest(), offset))
                self._next.replace(path)
                fsync_directory(self._directory)
            except OSError as error:
                self._writer.drop()
                raise store_error(f"keeping the work of phase {work.phase}", path, error) from error
            except EOFError:
                self._writer.drop()
                raise StoreError("the payload to be kept ends too early") from None

    def drop_below(self, round_index: int, needed: Collection[PhaseId] = ()) -> int:
        """Remove what belongs to entries below `round_index`, but for `needed`, and what is not sound; the number of
        bytes freed. A file also stays while that of a phase in its content stays: it says that the chain has
        that work. Raises StoreError."""
        freed = 0
        works = {work.phase: work for work in self._all()}
        staying = {phase for phase, work in works.items() if work.round >= round_index or phase in needed}
        for phase in sorted(works):  # the rest of a content is of earlier phases
            if any(earlier in staying for earlier, _ in works[phase].content):
                staying.add(phase)
        try:
            for path in (work_path(self._directory, phase) for phase in self.phases() if phase not in staying):
                freed += path.stat().st_size
                path.unlink()
        except OSError as error:
            raise store_error("dropping kept work", self._directory, error) from error
        return freed

    def total_bytes(self) -> int:
        """What all kept files take. Raises StoreError."""
        try:
            return sum(path.stat().st_size for path in self._directory.glob(f"*{SUFFIX}"))
        except OSError as error:
            raise store_error("looking at kept work", self._directory, error) from error
