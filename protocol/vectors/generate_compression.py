"""Golden vectors for chapter 08: `python protocol/vectors/generate_compression.py > protocol/vectors/compression.json`.

Written from the chapter in plain Python, without dilocoxd and without an array library. Products and quotients of fp32
numbers are computed in float64 and rounded once more, which equals one IEEE rounding to fp32.
"""

import json
import math
import random
import struct
import sys

SCALE_BYTES = {"fp32": 4, "bf16": 2, "short": 2, "pow2": 1}
SCALE_MIN = 2.0**-64


def fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def from_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bf16(x):
    bits = bits_of(x)
    return from_bits((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)


def bf16_bytes(x):
    return struct.pack("<H", bits_of(x) >> 16)


def nearest_even(x):
    return round(x)


def scale_of(maximum, levels, form):
    """(scale, wire bytes) for a block maximum."""
    scale = fp32(maximum / levels)
    if scale < SCALE_MIN:
        return 0.0, (struct.pack("b", -127) if form == "pow2" else bytes(SCALE_BYTES[form]))
    if form == "fp32":
        return scale, struct.pack("<f", scale)
    if form == "bf16":
        return bf16(scale), bf16_bytes(bf16(scale))
    if form == "short":
        scale = from_bits((bits_of(scale) + 0xFFFFF) & 0xFFF00000)
        return scale, bf16_bytes(scale)
    exponent = math.ceil(math.log2(scale))
    return 2.0**exponent, struct.pack("b", exponent)


def pack_split(codes, bits, filler):
    """Codes of one group, 8 // bits of them a byte, parts of the group side by side."""
    per_byte = 8 // bits
    width = -(-len(codes) // per_byte)
    padded = codes + [filler] * (width * per_byte - len(codes))
    return bytes(sum(padded[part * width + j] << (bits * part) for part in range(per_byte)) for j in range(width))


def grouped(codes, bits, filler):
    return b"".join(pack_split(codes[i : i + 4096], bits, filler) for i in range(0, len(codes), 4096))


def block_int(values, bits, block, form):
    levels = 2 ** (bits - 1) - 1
    scales, codes, decoded = b"", [], []
    for start in range(0, len(values), block):
        part = values[start : start + block]
        scale, raw = scale_of(max(map(abs, part)), levels, form)
        scales += raw
        inverse = fp32(1 / scale) if scale else 0.0
        own = [nearest_even(fp32(x * inverse)) for x in part]
        codes += own
        decoded += [fp32(code * scale) for code in own]
    if bits == 8:
        return scales + struct.pack(f"{len(codes)}b", *codes), decoded
    return scales + grouped([code + 8 for code in codes], 4, 8), decoded


def e3m0(values, block):
    scales, codes, decoded = b"", [], []
    for start in range(0, len(values), block):
        part = values[start : start + block]
        biggest = max(map(abs, part))
        nearest = from_bits((bits_of(biggest) + (1 << 22) - 1) >> 23 << 23)
        scale, raw = scale_of(nearest, 1, "pow2")
        scales += raw
        for x in part:
            relative = fp32(abs(x) / scale) if scale else 0.0
            level = 0
            if relative > 2.0**-7:
                level = min(7, max(1, ((bits_of(relative) + (1 << 22) - 1) >> 23) - 120))
            codes.append(level | (8 if x < 0 else 0))
            value = 2.0 ** (level - 7) * scale if level else 0.0
            decoded.append(-value if x < 0 else value)
    return scales + grouped(codes, 4, 8), decoded


def int2_payload(scales, codes):
    return b"".join(bf16_bytes(s) for s in scales) + grouped(codes, 2, 0)


def topk_payload(spans):
    """spans: list of (positions, low, high, codes)."""
    out = b""
    for positions, low, high, codes in spans:
        for a, b in zip(positions[::2], positions[1::2], strict=True):
            out += bytes([a & 255, a >> 8 | (b & 15) << 4, b >> 4])
        out += bf16_bytes(low) + bf16_bytes(high)
        padded = codes + [0] * (-len(codes) % 4)
        out += bytes(
            padded[i] | padded[i + 1] << 2 | padded[i + 2] << 4 | padded[i + 3] << 6 for i in range(0, len(padded), 4)
        )
    return out


def row(codec, options, payload, decoded, *, values=None):
    entry = {"codec": codec, "options": options, "numel": len(decoded), "payload": payload.hex()}
    entry["decoded"] = struct.pack(f"<{len(decoded)}f", *decoded).hex()
    if values is not None:
        entry["values"] = struct.pack(f"<{len(values)}f", *values).hex()
    return entry


def sample(rng, count, scale=1e-3):
    return [fp32(rng.gauss(0, 1) * scale) for _ in range(count)]


def valid_vectors():
    rng = random.Random(20261121)
    rows = []
    for count in (1, 7):
        values = sample(rng, count)
        rows.append(row("fp32", {}, struct.pack(f"<{count}f", *values), values, values=values))
        halves = [struct.unpack("<e", struct.pack("<e", x))[0] for x in values]
        rows.append(row("fp16", {}, struct.pack(f"<{count}e", *values), halves, values=values))
        brains = [bf16(x) for x in values]
        rows.append(row("bf16", {}, b"".join(map(bf16_bytes, brains)), brains, values=values))
    for bits, block, form in (
        (8, 256, "fp32"),
        (8, 64, "bf16"),
        (8, 64, "pow2"),
        (4, 128, "bf16"),
        (4, 64, "fp32"),
        (4, 16, "pow2"),
        (4, 32, "short"),
    ):
        for count in (1, 130, 301):
            values = sample(rng, count)
            values[count // 2] = 0.0
            payload, decoded = block_int(values, bits, block, form)
            rows.append(row(f"int{bits}", {"block": block, "scale": form}, payload, decoded, values=values))
    zeros = [0.0] * 130
    rows.append(row("int4", {}, *block_int(zeros, 4, 128, "bf16"), values=zeros))
    long = sample(rng, 4099)
    rows.append(row("int4", {}, *block_int(long, 4, 128, "bf16"), values=long))
    for count in (5, 200):
        values = sample(rng, count)
        rows.append(row("e3m0", {"block": 64}, *e3m0(values, 64), values=values))
    scales, codes = [0.5, bf16(0.001), 0.0], [rng.randrange(4) for _ in range(150)]
    decoded = [fp32((2 * code - 3) * scales[i // 64]) for i, code in enumerate(codes)]
    rows.append(row("int2", {"block": 64}, int2_payload(scales, codes), decoded))
    positions = [3, 0x123, 0xABC, 0xFFF]
    decoded = [0.0] * 5000
    for position, value in zip(
        [3, 0x123, 0xABC, 0xFFF, 4096 + 1, 4096 + 2], [1.0, -1.0, 4.0, -4.0, 0.5, -0.5], strict=True
    ):
        decoded[position] = value
    spans = [(positions, 1.0, 4.0, [0, 1, 2, 3]), ([1, 2, 4094, 4095], 0.5, 2.0, [0, 1, 0, 1])]
    rows.append(row("topk", {"k": 4}, topk_payload(spans), decoded))
    levels = [0.0] * 256
    levels[7], levels[200] = fp32(-0.25), fp32(1e-5)
    rows.append(row("int8bins", {}, struct.pack("<256f", *levels) + bytes([7, 200, 0]), [levels[7], levels[200], 0.0]))
    return rows


def failing_vectors(rows):
    """Every way in which chapter 08 lets a payload be wrong."""
    bad = []

    def add(reason, codec, options, numel, payload):
        bad.append({"reason": reason, "codec": codec, "options": options, "numel": numel, "payload": payload.hex()})

    for entry in rows:
        payload = bytes.fromhex(entry["payload"])
        where = entry["codec"], entry["options"], entry["numel"]
        add("one byte too few", *where, payload[:-1])
        add("one byte too many", *where, payload + b"\0")
    for reason, number in (
        ("NaN", math.nan),
        ("infinite", math.inf),
        ("minus infinite", -math.inf),
        ("above 2**64", 2.0**65),
    ):
        add(f"{reason} value", "fp32", {}, 2, struct.pack("<ff", 1.0, number))
        add(f"{reason} scale", "int8", {"block": 64, "scale": "fp32"}, 64, struct.pack("<f", number) + bytes(64))
        add(
            f"{reason} scale",
            "int4",
            {"block": 128, "scale": "bf16"},
            128,
            struct.pack("<I", bits_of(number))[2:] + bytes(64),
        )
        add(f"{reason} level", "int8bins", {}, 1, struct.pack("<256f", *[0.0] * 255, number) + b"\0")
    add("NaN value", "fp16", {}, 1, b"\x00\x7e")
    add("infinite value", "fp16", {}, 1, b"\x00\x7c")
    add("NaN value", "bf16", {}, 1, b"\xc0\x7f")
    add("negative scale", "int8", {"block": 64, "scale": "fp32"}, 64, struct.pack("<f", -1.0) + bytes(64))
    add("negative scale", "int2", {"block": 64}, 64, bf16_bytes(-1.0) + bytes(16))
    add("scale below 2**-64", "int4", {"block": 128, "scale": "bf16"}, 128, bf16_bytes(2.0**-65) + bytes(64))
    add("exponent above 64", "int4", {"block": 16, "scale": "pow2"}, 16, b"\x41" + bytes(8))
    add("exponent -128", "int4", {"block": 16, "scale": "pow2"}, 16, b"\x80" + bytes(8))
    add("exponent below -64", "e3m0", {"block": 64}, 64, b"\xbf" + bytes(32))
    add("too precise short scale", "int4", {"block": 32, "scale": "short"}, 32, bf16_bytes(bf16(1.01)) + bytes(16))
    add("position twice", "topk", {"k": 4}, 10, topk_payload([([3, 3, 4, 5], 1.0, 2.0, [0] * 4)]))
    add("positions descend", "topk", {"k": 4}, 10, topk_payload([([3, 2, 4, 5], 1.0, 2.0, [0] * 4)]))
    add("negative magnitude", "topk", {"k": 4}, 10, topk_payload([([1, 2, 4, 5], -1.0, 2.0, [0] * 4)]))
    add("NaN magnitude", "topk", {"k": 4}, 10, topk_payload([([1, 2, 4, 5], 1.0, math.nan, [0] * 4)]))
    return bad


def main():
    rows = valid_vectors()
    json.dump({"chapter": "08-compression", "valid": rows, "failing": failing_vectors(rows)}, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
