"""Snapshot directories: what belongs to one, whether it is whole, and how one appears without ever being half there.

`snapshots/<round>/` holds anchor.safetensors, momentum.safetensors (if the outer optimizer has state),
memory.safetensors (if the run has a schedule or low rank: outerworker/schedule_memory.py) and index.json
with the sha256 of every 4 MiB chunk, so that newcomers fetch chunks from several peers and check each. Torch-free: the
outer worker writes the tensors, the daemon serves and fetches the files. Source: docs/internals.md section 5.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dilocoxd.errors import StoreError
from dilocoxd.store.durable import TEMPORARY_SUFFIX, Corrupt, fsync_directory, link_or_copy, store_error, write_file
from dilocoxd.wire.codec import one_line
from dilocoxd.wire.limits import SEGMENTS_MAX
from dilocoxd.wire.state_digest import Leaf, Root, differing

CHUNK_BYTES: Final = 4 << 20
INDEX_NAME: Final = "index.json"
ANCHOR_NAME: Final = "anchor.safetensors"
MOMENTUM_NAME: Final = "momentum.safetensors"
MEMORY_NAME: Final = "memory.safetensors"
OPTIONAL_NAMES: Final = (MOMENTUM_NAME, MEMORY_NAME)
INDEX_BYTES_MAX: Final = 64 << 20
SEGMENTS_NAMED: Final = 16
TOLD_MAX: Final = 200
FILE_BYTES_MAX: Final = 1 << 42
_HASH_DIGITS: Final = 64
_HASH_TEXT_BYTES: Final = 67
"""Of one hash in the index: hexadecimal, quoted, with a comma."""
_SEGMENT_TEXT_BYTES: Final = _HASH_TEXT_BYTES + 20
_FRONT_TEXT_BYTES: Final = 4096
_FORMAT: Final = 2
_DOWNLOAD_SUFFIX: Final = ".download"
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file of a snapshot and the sha256 (hex) of each of its chunks."""

    name: str
    size: int
    chunks: tuple[str, ...]

    def chunk_length(self, chunk: int) -> int:
        """Bytes of chunk number `chunk`; all but the last are full."""
        return min(CHUNK_BYTES, self.size - chunk * CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class SnapshotIndex:
    """Contents of index.json. Digests are hex; `chain_head` is empty until the daemon has stamped it."""

    run_id: str
    round: int
    anchor_sha256: str
    state_digest: str
    chain_head: str
    files: tuple[SnapshotFile, ...]
    segments: tuple[tuple[int, str], ...] = ()
    """Values and hash of each segment (wire/state_digest.py), in order; a writer that does not know a hash leaves it
    empty. Believed only as far as what they lead to is: they say where a state differs, not that it is right."""

    @property
    def total_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """index.json, with a hash of itself."""
        body = dataclasses.asdict(self) | {"format": _FORMAT}
        return _canonical(body | {"sha256": hashlib.sha256(_canonical(body)).hexdigest()})


def chunks_max(num_segments: int) -> int:
    """Chunks, over all files, that the index of a state of so many segments has room for."""
    room = INDEX_BYTES_MAX - _FRONT_TEXT_BYTES - num_segments * _SEGMENT_TEXT_BYTES
    return room // _HASH_TEXT_BYTES


def decode_index(data: bytes, source: str) -> SnapshotIndex:
    """The index in `data`, which may come from anybody. Raises Corrupt naming `source`."""
    if len(data) > INDEX_BYTES_MAX:
        raise Corrupt(f"{source}: a snapshot index of {len(data)} bytes")
    try:
        body = json.loads(data)
        digest = body.pop("sha256")
        if (
            body.pop("format") != _FORMAT
            or digest != hashlib.sha256(_canonical(body | {"format": _FORMAT})).hexdigest()
        ):
            raise Corrupt(f"{source}: the snapshot index is damaged or of another version")
        files = tuple(_file(item) for item in body.pop("files"))
        segments = tuple((values, text) for values, text in body.pop("segments"))
        index = SnapshotIndex(**body, files=files, segments=segments)
        sound = _is_sound(index)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise Corrupt(f"{source}: not a snapshot index ({one_line(str(error))[:TOLD_MAX]})") from error
    if not sound:
        raise Corrupt(f"{source}: the snapshot index contradicts itself")
    return index


def _file(item: Any) -> SnapshotFile:
    return SnapshotFile(str(item["name"]), int(item["size"]), tuple(str(chunk) for chunk in item["chunks"]))


def _is_sound(index: SnapshotIndex) -> bool:
    names = [file.name for file in index.files]
    hashes = [index.anchor_sha256, index.state_digest, *(chunk for file in index.files for chunk in file.chunks)]
    return (
        type(index.round) is int
        and index.round >= 0
        and isinstance(index.run_id, str)
        and names == [ANCHOR_NAME, *(name for name in OPTIONAL_NAMES if name in names)]
        and all(0 < file.size <= FILE_BYTES_MAX for file in index.files)
        and all(len(file.chunks) == -(-file.size // CHUNK_BYTES) for file in index.files)
        and all(_is_hash(text) for text in hashes)
        and len(index.segments) <= SEGMENTS_MAX
        and all(type(values) is int and 0 < values <= FILE_BYTES_MAX for values, _ in index.segments)
        and all(text == "" or _is_hash(text) for text in (index.chain_head, *(text for _, text in index.segments)))
    )


def _is_hash(text: str) -> bool:
    """As it is compared with what is computed here: nothing but 64 small digits (L7)."""
    return len(text) == _HASH_DIGITS and bytes.fromhex(text).hex() == text


def _canonical(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode("ascii")


def disagreement(index: SnapshotIndex, root: Root, leaves: Sequence[Leaf], lengths: Sequence[int]) -> str:
    """What a loaded snapshot has otherwise than its index says; empty if nothing. `lengths`: values per segment."""
    problem = ""
    if root.state_digest.hex() != index.state_digest:
        where = differing([leaf.whole for leaf in leaves], [bytes.fromhex(text) for _, text in index.segments])
        problem = (
            f"the snapshot's tensors have state digest {root.state_digest.hex()[:16]}, its index says"
            f" {index.state_digest[:16]}{_where(where)}"
        )
    elif root.anchor_sha256.hex() != index.anchor_sha256:
        problem = "the snapshot's index has another hash of the anchor than its tensors"
    elif [values for values, _ in index.segments] != list(lengths):
        problem = "the snapshot's index cuts the anchor in other segments than the run"
    return f"{problem}; use another snapshot (no state is loaded now)" if problem else ""


def _where(segments: tuple[int, ...]) -> str:
    if not segments:
        return ""
    more = f" and {len(segments) - SEGMENTS_NAMED} more" if len(segments) > SEGMENTS_NAMED else ""
    return f" (in segment {', '.join(map(str, segments[:SEGMENTS_NAMED]))}{more})"


def read_index(directory: Path) -> SnapshotIndex:
    """The index of a snapshot directory. Raises Corrupt (also if there is none), StoreError if it cannot be read."""
    path = directory / INDEX_NAME
    try:
        with path.open("rb") as file:
            data = file.read(INDEX_BYTES_MAX + 1)
    except OSError as error:
        kind = Corrupt if isinstance(error, FileNotFoundError) else StoreError
        raise kind(f"snapshot {directory} cannot be read: {error.strerror}; use another snapshot") from error
    return decode_index(data, str(path))


def hash_chunks(path: Path, progress: Progress = lambda done: None) -> SnapshotFile:
    """Size and chunk hashes of a file; `progress` hears the bytes done after each chunk. Raises OSError."""
    size = path.stat().st_size
    return SnapshotFile(path.name, size, tuple(hash_some_chunks(path, chunks_within(size, 0, size), progress)))


def chunks_within(size: int, first: int, stop: int) -> range:
    """Numbers of the chunks of a file of `size` bytes that lie whole in its bytes [first, stop)."""
    begin = -(-first // CHUNK_BYTES)
    end = -(-size // CHUNK_BYTES) if stop >= size else stop // CHUNK_BYTES
    return range(begin, max(begin, end))


def hash_some_chunks(path: Path, numbers: range, progress: Progress = lambda done: None) -> list[str]:
    """Hashes (hex) of these chunks, as far as the file has them. Raises OSError."""
    chunks = []
    buffer = bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        for number in numbers:
            count = _fill(file.fileno(), buffer, number * CHUNK_BYTES)
            if not count:
                break
            chunks.append(hashlib.sha256(memoryview(buffer)[:count]).hexdigest())
            progress(number * CHUNK_BYTES + count)
    return chunks


def _fill(fd: int, buffer: bytearray, offset: int) -> int:
    view, total = memoryview(buffer), 0
    while total < len(buffer):
        count = os.preadv(fd, [view[total:]], offset + total)
        if not count:
            break
        total += count
    return total


def all_chunks(file: SnapshotFile) -> range:
    """Numbers of all chunks of a file."""
    return range(len(file.chunks))


def verify(
    directory: Path,
    progress: Progress = lambda done: None,
    chunks_of: Callable[[SnapshotFile], range] = all_chunks,
) -> SnapshotIndex:
    """The index of a snapshot whose files all have the hashes it names. Raises Corrupt naming file and chunk.

    `chunks_of`: those that are looked at. May raise StoreError."""
    index = read_index(directory)
    for expected in index.files:
        path = directory / expected.name
        try:
            size = path.stat().st_size
            numbers = chunks_of(expected)
            found = hash_some_chunks(path, numbers, progress)
        except OSError as error:
            raise Corrupt(f"snapshot file {path} cannot be read: {error.strerror}; use another snapshot") from error
        if size != expected.size or len(found) != len(numbers):
            raise Corrupt(f"snapshot file {path} has {size} bytes instead of {expected.size}; delete the snapshot")
        for number, have in zip(numbers, found, strict=True):
            if have != expected.chunks[number]:
                raise damaged_chunk(path, number)
    return index


def damaged_chunk(path: Path, number: int) -> Corrupt:
    """What to say of a chunk that has another hash."""
    return Corrupt(f"snapshot file {path} is damaged in chunk {number} (sha256 differs); delete the snapshot")


def temporary_directory(directory: Path) -> Path:
    """Where a snapshot is prepared: beside its final place, under a name that no reader takes for one."""
    return directory.with_name(f".{directory.name}{TEMPORARY_SUFFIX}")


def publish(temporary: Path, directory: Path, index: SnapshotIndex) -> None:
    """Write the index and let `directory` appear, durably. The files must be fsynced. Raises StoreError."""
    write_file(temporary / INDEX_NAME, index.encode())
    move_in(temporary, directory)


def move_in(temporary: Path, directory: Path) -> None:
    """Let a snapshot that is complete in `temporary` appear as `directory`, durably. Raises StoreError."""
    try:
        if directory.exists():
            _remove(directory)
        temporary.rename(directory)
        fsync_directory(directory.parent)
    except OSError as error:
        raise store_error("publishing a snapshot", directory, error) from error


def _remove(directory: Path) -> None:
    """Out of the readers' sight first, durably: a snapshot is whole or absent. Raises OSError."""
    hidden = directory.with_name(f".{directory.name}.old{TEMPORARY_SUFFIX}")
    shutil.rmtree(hidden, ignore_errors=True)
    directory.rename(hidden)
    fsync_directory(directory.parent)
    shutil.rmtree(hidden, ignore_errors=True)


def link_snapshot(source: Path, target: Path) -> None:
    """Let `target` be the same snapshot, durably, by hard links where there are some: they take no space.

    Raises Corrupt when `source` is not there, or not all of it, and StoreError.
    """
    index, temporary = read_index(source), temporary_directory(target)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for file in index.files:
            link_or_copy(source / file.name, temporary / file.name)
    except FileNotFoundError as error:
        raise Corrupt(f"snapshot {source} is not complete ({error.filename}); delete the snapshot") from error
    except OSError as error:
        raise store_error("keeping a snapshot", source, error) from error
    publish(temporary, target, index)


def stamp_chain_head(directory: Path, chain_head: bytes) -> SnapshotIndex:
    """Record which chain a snapshot belongs to (the outer worker does not know it). Raises StoreError."""
    index = dataclasses.replace(read_index(directory), chain_head=chain_head.hex())
    write_file(directory / INDEX_NAME, index.encode())
    return index


def list_rounds(root: Path) -> list[int]:
    """Rounds of the snapshots below `root`, ascending. Only complete ones appear there; contents are not checked."""
    if not root.is_dir():
        return []
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdecimal() and (path / INDEX_NAME).is_file())


def download_directory(root: Path, number: int) -> Path:
    """Where a snapshot that comes from others is gathered; it stays there over restarts, until it is adopted."""
    return root / f".{number}{_DOWNLOAD_SUFFIX}"


def remove_downloads(root: Path, height: int) -> None:
    """Delete downloads up to `height`: the chain here leads beyond them."""
    for path in root.glob(f".*{_DOWNLOAD_SUFFIX}"):
        number = path.name[1:].removesuffix(_DOWNLOAD_SUFFIX)
        if number.isdecimal() and int(number) <= height:
            shutil.rmtree(path, ignore_errors=True)


def remove_leftovers(root: Path) -> None:
    """Delete what a crash left half written (not partial downloads, which can be continued)."""
    if root.is_dir():
        for path in root.glob(f".*{TEMPORARY_SUFFIX}"):
            shutil.rmtree(path, ignore_errors=True)


def prune(root: Path, keep: int, height: int, *, keeps_first: bool = False) -> list[int]:
    """Delete all but the newest `keep` snapshots up to `height`; returns the rounds that were deleted.

    `keeps_first`: snapshot 0 stays, because nothing else leads to it.

    What lies above is of a branch that was left: it must not take the place of one that the log is replayed from.
    """
    rounds = [number for number in list_rounds(root) if number <= height and (number or not keeps_first)]
    doomed = rounds[: max(0, len(rounds) - keep)]
    for number in doomed:
        with contextlib.suppress(OSError):
            _remove(root / str(number))
    return doomed
