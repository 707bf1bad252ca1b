"""Golden vectors of chapter 04 (frames): `python generate_frames.py > frames.json` in protocol/vectors.

Whole streams as bytes, with the frames in them or the code with which they are refused; `is_data`: those of a data
connection. Written from the chapter, without dilocoxd.
"""

import json
import struct
import sys

from canonical import frame, pack, sha256

KINDS = (
    *("MESSAGE", "CALL", "REPLY", "REFUSED", "HELLO", "OFFER"),
    *("HOLDING", "PIECE", "FINISHED", "RECEIPT", "FETCH", "FOUND"),
)
KIB = 1024
MOST = (*[1024 * KIB] * 3, 72 * KIB, 16 * KIB, 64 * KIB, 64 * KIB, 256 * KIB + 8, 0, 1, 64 * KIB, 16 * KIB)


def payload_for(kind):
    if kind == "FINISHED":
        return b""
    if kind == "RECEIPT":
        return b"\0"
    if kind == "PIECE":
        return (5).to_bytes(8, "big") + b"piece"
    return pack([30, 7, bytes(32)])


def prelude(magic=b"DX", version=1, kind=1, length=0, digest=None):
    first = magic + bytes([version, kind]) + struct.pack(">I", length)
    return first + (sha256(first) if digest is None else digest)


def streams():
    frames = [(number, name, payload_for(name)) for number, name in enumerate(KINDS, start=1)]
    for number, name, payload in frames:
        yield [[name, payload.hex()]], frame(number, payload)
    yield [[name, payload.hex()] for _, name, payload in frames], b"".join(frame(n, p) for n, _, p in frames)
    yield [["MESSAGE", ""]], frame(1)


def undigested(payload, kind=8, digest=bytes(32)):
    return prelude(version=2, kind=kind, length=len(payload), digest=digest) + payload


def data_streams():
    piece = payload_for("PIECE")
    yield [["PIECE", piece.hex()]], undigested(piece)
    yield [["PIECE", piece.hex()]] * 2 + [["FINISHED", ""]], undigested(piece) * 2 + frame(9)
    yield [["HELLO", piece.hex()], ["PIECE", piece.hex()]], frame(5, piece) + undigested(piece)


def flipped(data, position):
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def broken():
    good = frame(1, payload_for("MESSAGE"))
    yield "magic", flipped(good, 0), "frame_magic"
    yield "magic of another protocol", b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" + bytes(10), "frame_magic"
    yield "version 0", prelude(version=0), "frame_version"
    yield "version 2", prelude(version=2), "frame_version"
    yield "version 2 on a stream", undigested(payload_for("PIECE")), "frame_version"
    yield "kind 0", prelude(kind=0), "frame_kind"
    yield "first unknown kind", prelude(kind=len(KINDS) + 1), "frame_kind"
    yield "last unknown kind", prelude(kind=255), "frame_kind"
    yield "another kind, digest of the old one", good[:3] + b"\x02" + good[4:], "bad_hash"
    yield "first byte of the digest", flipped(good, 8), "bad_hash"
    yield "last byte of the digest", flipped(good, 39), "bad_hash"
    yield "first byte of the payload", flipped(good, 40), "bad_hash"
    yield "last byte of the payload", flipped(good, len(good) - 1), "bad_hash"
    yield "digest of the payload alone", good[:8] + sha256(good[40:]) + good[40:], "bad_hash"
    yield "length with other byte order", prelude(length=0x01000000 * 16), "too_large"
    for number, (name, most) in enumerate(zip(KINDS, MOST, strict=True), start=1):
        yield f"{name} longer than allowed", prelude(kind=number, length=most + 1), "too_large"
    for length in (1, 39, 40, 41, len(good) - 1):
        yield f"ends after {length} bytes", good[:length], "truncated"
    yield "second frame is cut", good + good[:-1], "truncated"


def broken_data():
    piece = payload_for("PIECE")
    good = undigested(piece)
    yield "version 3", good[:2] + b"\x03" + good[3:], "frame_version"
    yield "version 1 without a digest", good[:2] + b"\x01" + good[3:], "bad_hash"
    yield "version 2 with a digest", undigested(piece, digest=sha256(good[:8] + piece)), "bad_hash"
    yield "version 2, last byte of the digest", flipped(good, 39), "bad_hash"
    yield "version 2 of an unknown kind", prelude(version=2, kind=len(KINDS) + 1, digest=bytes(32)), "frame_kind"
    for number, name in enumerate(KINDS, start=1):
        if name != "PIECE":
            yield f"{name} without a digest", undigested(payload_for(name), kind=number), "frame_version"
    most = MOST[KINDS.index("PIECE")]
    yield (
        "PIECE longer than allowed, without a digest",
        prelude(version=2, kind=8, length=most + 1, digest=bytes(32)),
        "too_large",
    )
    for length in (2, 40, len(good) - 1):
        yield f"ends after {length} bytes of a piece without a digest", good[:length], "truncated"
    yield "second piece is cut", good + good[:-1], "truncated"


def main():
    valid = [{"frames": frames, "bytes": data.hex()} for frames, data in streams()]
    failing = [{"broken": what, "bytes": data.hex(), "code": code} for what, data, code in broken()]
    valid += [{"frames": frames, "bytes": data.hex(), "is_data": True} for frames, data in data_streams()]
    failing += [
        {"broken": what, "bytes": data.hex(), "code": code, "is_data": True} for what, data, code in broken_data()
    ]
    json.dump({"chapter": "04-streams", "valid": valid, "failing": failing}, sys.stdout, indent=0)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
