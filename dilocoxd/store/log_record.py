"""One record of the log as a file: header, signed entry, segment lengths, their sha256, then the result payload.

Decides whether the bytes of a file are a whole, undamaged record. The payload is not covered by the record's own
hash but by the entry's `result_hashes`, so a record proves that it holds exactly what was voted for.
Layout (little-endian): magic(8) | u32 entry bytes | u32 number of segments | u64 payload bytes | u8 has payload |
entry | u64 per segment | sha256 of all before | payload. Of an entry that this site voted for the payload was on disk
before the votes were there: its magic is another one, the payload is at PAYLOAD_AT, and entry, lengths and sha256 (of
header, entry and lengths) stand behind it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.errors import WireError
from dilocoxd.store.durable import Corrupt
from dilocoxd.wire.entry import ENTRY_BYTES_MAX, SignedEntry, decode_entry, encode_entry

MAGIC = b"dlxlog1\n"
MAGIC_PAYLOAD_FIRST = b"dlxlog2\n"
PAYLOAD_AT = 4096
_HEADER = struct.Struct("<8sIIQB")
_SEGMENTS_MAX = 1 << 20
_DIGEST_BYTES = 32
PIECE_BYTES = 1 << 20
"""Payloads are copied and hashed in pieces of this size, so memory does not grow with the model."""


@dataclass(frozen=True, slots=True)
class Record:
    """A decoded record without its payload bytes."""

    signed: SignedEntry
    lengths: tuple[int, ...]
    """Bytes of each result segment, in the order of `entry.result_hashes`."""
    has_payload: bool
    """False after retention dropped the payload."""
    payload_offset: int

    @property
    def payload_bytes(self) -> int:
        return sum(self.lengths)


def encode_front(signed: SignedEntry, lengths: tuple[int, ...], *, has_payload: bool) -> bytes:
    """Everything of a record in front of the payload."""
    entry = encode_entry(signed)
    head = _HEADER.pack(MAGIC, len(entry), len(lengths), sum(lengths), has_payload)
    body = head + entry + struct.pack(f"<{len(lengths)}Q", *lengths)
    return body + hashlib.sha256(body).digest()


def encode_around(signed: SignedEntry, lengths: tuple[int, ...]) -> tuple[bytes, bytes]:
    """What stands in front of a payload at PAYLOAD_AT, and what stands behind it."""
    entry = encode_entry(signed)
    head = _HEADER.pack(MAGIC_PAYLOAD_FIRST, len(entry), len(lengths), sum(lengths), True)
    rest = entry + struct.pack(f"<{len(lengths)}Q", *lengths)
    return head, rest + hashlib.sha256(head + rest).digest()


def read_record(path: Path) -> Record:
    """The record in `path`, checked except for the payload's hashes. Raises Corrupt and OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise Corrupt(f"{path}: cut off in its header")
        magic, entry_bytes, num_segments, payload_bytes, has_payload = _HEADER.unpack(head)
        is_behind = magic == MAGIC_PAYLOAD_FIRST and has_payload == 1
        if (
            not (magic == MAGIC or is_behind)
            or entry_bytes > ENTRY_BYTES_MAX
            or num_segments > _SEGMENTS_MAX
            or has_payload > 1
        ):
            raise Corrupt(f"{path}: not a log record, or a damaged header")
        if is_behind:
            file.seek(min(PAYLOAD_AT + payload_bytes, size))
        rest = file.read(entry_bytes + 8 * num_segments + _DIGEST_BYTES)
    body, digest = rest[:-_DIGEST_BYTES], rest[-_DIGEST_BYTES:]
    if len(rest) < entry_bytes + 8 * num_segments + _DIGEST_BYTES or hashlib.sha256(head + body).digest() != digest:
        raise Corrupt(f"{path}: damaged or cut off (its sha256 does not match)")
    lengths = struct.unpack(f"<{num_segments}Q", body[entry_bytes:])
    offset = PAYLOAD_AT if is_behind else len(head) + len(rest)
    expected = offset + has_payload * payload_bytes + is_behind * len(rest)
    if sum(lengths) != payload_bytes or size != expected:
        raise Corrupt(f"{path}: {size} bytes instead of {expected}")
    try:
        signed = decode_entry(body[:entry_bytes])
    except WireError as error:
        raise Corrupt(f"{path}: entry does not decode ({error})") from error
    if len(signed.entry.result_hashes) != num_segments:
        raise Corrupt(f"{path}: {num_segments} segments, the entry names {len(signed.entry.result_hashes)}")
    return Record(signed, lengths, bool(has_payload), offset)


def read_result(path: Path, record: Record, segment: int) -> bytes:
    """The result of this segment, from a record that has its payload. Raises Corrupt unless it has the hash that the
    entry names, and OSError."""
    with path.open("rb") as file:
        start = record.payload_offset + sum(record.lengths[:segment])
        data = os.pread(file.fileno(), record.lengths[segment], start)
    if hashlib.sha256(data).digest() != record.signed.entry.result_hashes[segment]:
        raise Corrupt(f"segment {segment} of the payload of entry {record.signed.entry.round} is damaged")
    return data


def check_payload(path: Path, record: Record) -> None:
    """Raise Corrupt unless every segment of the payload has the hash that its entry names."""
    buffer = bytearray(PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        file.seek(record.payload_offset)
        for index, (length, expected) in enumerate(zip(record.lengths, record.signed.entry.result_hashes, strict=True)):
            digest = hashlib.sha256()
            left = length
            while left:
                count = file.readinto(memoryview(buffer)[: min(left, PIECE_BYTES)])
                if not count:
                    raise Corrupt(f"{path}: payload cut off in segment {index}")
                digest.update(memoryview(buffer)[:count])
                left -= count
            if digest.digest() != expected:
                raise Corrupt(f"{path}: payload segment {index} does not have the hash that was voted for")
