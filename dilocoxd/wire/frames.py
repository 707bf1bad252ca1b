"""Frames: how bytes are cut into verified units on a stream between two peers (protocol/ chapter encoding).

One frame = 40 bytes of prelude, then the payload::

    offset  size  field
    0       2     magic b"DX"
    2       1     frame version: 1, or 2 (a PIECE without a digest, on a data connection)
    3       1     kind (FrameKind)
    4       4     payload length, big endian
    8       32    version 1: sha256(bytes 0..7 of the prelude + payload); version 2: zeros

The digest covers the prelude too, so a flipped kind or length cannot turn one valid frame into another. Each kind
has its own length cap, checked before a single payload byte is kept: a hostile length costs us 40 bytes. A sealed
connection is one on which TLS vouches for every byte (S11.8): a digest of the sender's own says nothing more there.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.wire.messages import MESSAGE_BYTES_MAX

MAGIC: Final = b"DX"
FRAME_VERSION: Final = 1
FRAME_VERSION_UNDIGESTED: Final = 2
UNDIGESTED_SINCE_MINOR: Final = 1
"""Minor version of the protocol from which on pieces without a digest are understood."""
NO_DIGEST: Final = bytes(32)
PRELUDE_BYTES: Final = 40
PIECE_BYTES: Final = 256 * 1024
"""Bytes of a bulk payload in one PIECE frame (the last one may be shorter)."""
PIECE_HEADER_BYTES: Final = 8

_KIB: Final = 1024
_HEAD: Final = struct.Struct(">2sBBI")


class FrameKind(IntEnum):
    """What a frame carries; the numbers are normative."""

    MESSAGE = 1
    """One peer message, no answer expected."""
    CALL = 2
    """One peer message that is answered by REPLY or REFUSED on the same stream."""
    REPLY = 3
    REFUSED = 4
    """Message Refuse: the other side will not do it, and why."""
    HELLO = 5
    """Message Hello, both ways."""
    OFFER = 6
    """Bulk push: message SegmentHeader of a payload."""
    HOLDING = 7
    """Bulk push: bitmap of the pieces that the receiver already has."""
    PIECE = 8
    """8 bytes piece index, big endian, then at most PIECE_BYTES bytes."""
    FINISHED = 9
    """Bulk: the sender has sent all it was going to send on this stream."""
    RECEIPT = 10
    """1 byte: 0 = payload complete and verified, 1 = pieces of this stream taken, payload not complete yet."""
    FETCH = 11
    """Message Fetch."""
    FOUND = 12
    """Message FetchHeader; PIECE frames follow."""

    @staticmethod
    def named(kinds: "Kinds") -> str:
        """In words; none: what may come in place of any."""
        return " or ".join(kind.name for kind in kinds) or "a refusal"


Kinds = tuple[FrameKind, ...]
PAYLOAD_BYTES_MAX: Final[dict[FrameKind, int]] = {
    FrameKind.MESSAGE: MESSAGE_BYTES_MAX,
    FrameKind.CALL: MESSAGE_BYTES_MAX,
    FrameKind.REPLY: MESSAGE_BYTES_MAX,
    FrameKind.REFUSED: 72 * _KIB,
    FrameKind.HELLO: 16 * _KIB,
    FrameKind.OFFER: 64 * _KIB,
    FrameKind.HOLDING: 64 * _KIB,
    FrameKind.PIECE: PIECE_BYTES + PIECE_HEADER_BYTES,
    FrameKind.FINISHED: 0,
    FrameKind.RECEIPT: 1,
    FrameKind.FETCH: 64 * _KIB,
    FrameKind.FOUND: 16 * _KIB,
}


@dataclass(frozen=True, slots=True)
class Prelude:
    """The decoded first 40 bytes of a frame."""

    kind: FrameKind
    length: int
    digest: bytes
    head: bytes

    @property
    def is_digested(self) -> bool:
        """Whether the digest is one of the payload."""
        return self.head[len(MAGIC)] != FRAME_VERSION_UNDIGESTED


@dataclass(frozen=True, slots=True)
class Frame:
    """A complete frame whose digest was right, if it has one."""

    kind: FrameKind
    payload: bytes | bytearray | memoryview
    """`bytes` for all kinds but PIECE."""

    @property
    def message(self) -> bytes:
        """The payload of a kind that carries a message."""
        assert isinstance(self.payload, bytes), "pieces carry no message"
        return self.payload


def encode_prelude(kind: FrameKind, parts: Iterable[bytes | memoryview], *, is_digested: bool = True) -> bytes:
    """40 bytes that announce the concatenation of `parts`; the caller writes the parts after it, unjoined."""
    views = list(parts)
    length = sum(len(view) for view in views)
    if length > PAYLOAD_BYTES_MAX[kind]:
        raise WireError("too_large", f"{kind.name} of {length} bytes, limit {PAYLOAD_BYTES_MAX[kind]}")
    if not is_digested:
        return _HEAD.pack(MAGIC, FRAME_VERSION_UNDIGESTED, kind, length) + NO_DIGEST
    head = _HEAD.pack(MAGIC, FRAME_VERSION, kind, length)
    digest = hashlib.sha256(head)
    for view in views:
        digest.update(view)
    return head + digest.digest()


def encode(kind: FrameKind, payload: bytes = b"") -> bytes:
    """A whole frame as bytes (small payloads; bulk pieces use encode_prelude)."""
    return encode_prelude(kind, [payload]) + payload


def decode_prelude(data: bytes, *, is_sealed: bool = False) -> Prelude:
    """The announced kind and length. Raises WireError for anything that this version does not define.

    `is_sealed`: TLS vouches for what comes here, so pieces need no digest.
    """
    if len(data) != PRELUDE_BYTES:
        raise WireError("truncated", f"prelude of {len(data)} bytes, want {PRELUDE_BYTES}")
    magic, version, number, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise WireError("frame_magic", f"{magic!r}, want {MAGIC!r}")
    if version != FRAME_VERSION and not (is_sealed and version == FRAME_VERSION_UNDIGESTED):
        raise WireError("frame_version", f"{version}, want {FRAME_VERSION}")
    try:
        kind = FrameKind(number)
    except ValueError:
        raise WireError("frame_kind", str(number)) from None
    if version == FRAME_VERSION_UNDIGESTED and kind is not FrameKind.PIECE:
        raise WireError("frame_version", f"{version} of a {kind.name}, want {FRAME_VERSION}")
    if length > PAYLOAD_BYTES_MAX[kind]:
        raise WireError("too_large", f"{kind.name} announces {length} bytes, limit {PAYLOAD_BYTES_MAX[kind]}")
    prelude = Prelude(kind, length, data[_HEAD.size :], data[: _HEAD.size])
    if not prelude.is_digested and prelude.digest != NO_DIGEST:
        raise WireError("bad_hash", f"{kind.name} without a digest has one")
    return prelude


def finish_frame(prelude: Prelude, payload: bytes | bytearray | memoryview) -> Frame:
    """The frame, once its payload is complete. Raises WireError if length or digest is wrong."""
    if len(payload) != prelude.length:
        raise WireError("truncated", f"{prelude.kind.name}: {len(payload)} of {prelude.length} bytes")
    if prelude.is_digested:
        digest = hashlib.sha256(prelude.head)
        digest.update(payload)
        if digest.digest() != prelude.digest:
            raise WireError("bad_hash", f"{prelude.kind.name} of {prelude.length} bytes")
    return Frame(prelude.kind, payload)


def encode_piece_header(index: int) -> bytes:
    """8 bytes before the data of a PIECE."""
    return index.to_bytes(PIECE_HEADER_BYTES, "big")


def split_piece(payload: bytes | bytearray | memoryview) -> tuple[int, memoryview]:
    """(index, data) of a PIECE payload; the data is a view, not a copy."""
    if len(payload) < PIECE_HEADER_BYTES:
        raise WireError("truncated", f"PIECE payload of {len(payload)} bytes")
    return int.from_bytes(payload[:PIECE_HEADER_BYTES], "big"), memoryview(payload)[PIECE_HEADER_BYTES:]
