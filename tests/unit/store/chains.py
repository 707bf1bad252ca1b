"""Small chains of entries for the tests of the log."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.store.log import EntryLog, PayloadSource
from dilocoxd.wire.entry import Contribution, Entry, Signature, SignedEntry, SignedVote, entry_hash

RUN = RunId("run-0123456789abcdef")
GENESIS = Digest(hashlib.sha256(b"genesis").digest())
LENGTHS = (3000, 17, 4096)


def payload_of(index: int, lengths: tuple[int, ...] = LENGTHS) -> bytes:
    """Payload bytes that depend on the entry's number only."""
    return random.Random(index).randbytes(sum(lengths))


def signed(index: int, parent: Digest, lengths: tuple[int, ...] = LENGTHS, salt: bytes = b"") -> SignedEntry:
    """Entry `index` after `parent`, with the hashes of `payload_of(index)`."""
    payload, hashes, start = payload_of(index, lengths), [], 0
    for length in lengths:
        hashes.append(hashlib.sha256(payload[start : start + length]).digest())
        start += length
    root = hashlib.sha256(b"payload" + salt).digest()
    contribution = Contribution(PeerId("QmA"), PhaseId(index), RoundIndex(index), 10, 100, root)
    digest = hashlib.sha256(b"state" + bytes([index % 256])).digest()
    entry = Entry(RUN, RoundIndex(index), parent, digest, (contribution,), tuple(hashes), 0, 0, 10, (), ())
    signature = Signature(b"key", b"signature")
    return SignedEntry(entry, (signature,), (SignedVote(PeerId("QmA"), Attempt(0), 1, signature),))


@contextmanager
def payload_file(index: int, prefix: bytes = b"", lengths: tuple[int, ...] = LENGTHS) -> Iterator[PayloadSource]:
    """A descriptor that holds the payload behind `prefix`, as the RESULT buffer does."""
    fd = os.memfd_create("payload")
    try:
        os.write(fd, prefix + payload_of(index, lengths))
        yield PayloadSource(fd, len(prefix), lengths)
    finally:
        os.close(fd)


def append(log: EntryLog, count: int) -> None:
    """Add `count` entries to a log."""
    for _ in range(count):
        entry = signed(log.height, log.head)
        with payload_file(log.height) as source:
            assert log.append(entry, source) == entry_hash(entry.entry)


def new_log(directory: Path, count: int = 0) -> EntryLog:
    log = EntryLog(directory, RUN, GENESIS)
    append(log, count)
    return log


def snapshot_of(directory: Path) -> dict[str, bytes]:
    """Names and contents of all files."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
