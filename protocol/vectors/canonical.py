"""Chapters 02 to 04 in plain Python, for the generators of the golden vectors: no dilocoxd, msgpack, crypto library."""

import hashlib
import math
import struct
import tomllib
from pathlib import Path

REGISTRY = tomllib.loads((Path(__file__).parents[1] / "registry.toml").read_text(encoding="utf-8"))

# A published key: who signs with it proves nothing. PKCS#1 numbers of an RSA-2048 key made for these vectors.
KEYS = Path(__file__).with_name("keys.toml")
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
SHA256_INFO = bytes.fromhex("3031300d060960864801650304020105000420")
RSA_ALGORITHM = bytes.fromhex("300d06092a864886f70d0101010500")


def sha256(data):
    return hashlib.sha256(data).digest()


def pack(value):
    """Chapter 02, E1-E3: nil, bool, int, text, bytes and arrays, each in its shortest form."""
    if value is None:
        return b"\xc0"
    if value is True or value is False:
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return pack_integer(value)
    if isinstance(value, str):
        data = value.encode()
        return head(len(data), 0xA0, 31, (0xD9, 0xDA, 0xDB)) + data
    if isinstance(value, bytes):
        return head(len(value), None, -1, (0xC4, 0xC5, 0xC6)) + value
    return head(len(value), 0x90, 15, (None, 0xDC, 0xDD)) + b"".join(pack(item) for item in value)


def pack_integer(value):
    if 0 <= value < 128 or -32 <= value < 0:
        return struct.pack("b" if value < 0 else "B", value)
    forms = ((0xD0, ">b"), (0xD1, ">h"), (0xD2, ">i"), (0xD3, ">q"))
    if value >= 0:
        forms = ((0xCC, ">B"), (0xCD, ">H"), (0xCE, ">I"), (0xCF, ">Q"))
    for number, form in forms:
        try:
            return bytes([number]) + struct.pack(form, value)
        except struct.error:
            continue
    raise ValueError(value)


def head(length, fixed, fixed_max, numbers):
    """Shortest header of a text, a byte string or an array."""
    if length <= fixed_max:
        return bytes([fixed | length])
    for number, form in zip(numbers, (">B", ">H", ">I"), strict=True):
        if number is not None and length < 1 << 8 * struct.calcsize(form):
            return bytes([number]) + struct.pack(form, length)
    raise ValueError(length)


def frame(kind, payload=b""):
    """Chapter 04, S4."""
    first = b"DX\x01" + bytes([kind]) + struct.pack(">I", len(payload))
    return first + sha256(first + payload) + payload


def half(count):
    """The largest power of two below `count`."""
    return 1 << ((count - 1).bit_length() - 1)


def merkle_root(hashes):
    """Chapter 07, X10: by the recursive definition of RFC 9162 section 2.1."""
    if len(hashes) == 1:
        return sha256(b"\0" + hashes[0])
    k = half(len(hashes))
    return sha256(b"\1" + merkle_root(hashes[:k]) + merkle_root(hashes[k:]))


def base58(data):
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = BASE58[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def der(tag, body):
    size = len(body)
    length = (
        bytes([size])
        if size < 128
        else bytes([0x80 | (size.bit_length() + 7) // 8]) + size.to_bytes((size.bit_length() + 7) // 8, "big")
    )
    return bytes([tag]) + length + body


def der_integer(value):
    return der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def primes(modulus, exponent, secret):
    """Both factors of an RSA modulus: by a square root of 1 that is neither 1 nor -1."""
    odd = exponent * secret - 1
    while odd % 2 == 0:
        odd //= 2
    base = 1
    while True:
        base += 1
        root = pow(base, odd, modulus)
        while (square := root * root % modulus) != 1:
            root = square
        if root not in (1, modulus - 1):
            first = math.gcd(root - 1, modulus)
            return first, modulus // first


class Key:
    """Chapter 03, I1 and I4."""

    def __init__(self, modulus, exponent, secret):
        self.modulus, self.exponent, self.secret = modulus, exponent, secret
        self.p, self.q = primes(modulus, exponent, secret)
        self.signed = {}
        pkcs1 = der(0x30, der_integer(modulus) + der_integer(exponent))
        self.public = der(0x30, RSA_ALGORITHM + der(3, b"\0" + pkcs1))
        size = len(self.public)
        protobuf = b"\x08\x00\x12" + bytes([size & 0x7F | 0x80, size >> 7]) + self.public
        self.peer = base58(b"\x12\x20" + sha256(protobuf))

    def sign(self, text):
        """RSASSA-PKCS1-v1_5 with SHA-256; each text once, and by both primes: together an eighth of the time."""
        if text not in self.signed:
            info = SHA256_INFO + sha256(text)
            padded = b"\0\x01" + b"\xff" * (256 - len(info) - 3) + b"\0" + info
            number, p, q = int.from_bytes(padded, "big"), self.p, self.q
            of_p, of_q = (pow(number % prime, self.secret % (prime - 1), prime) for prime in (p, q))
            self.signed[text] = (of_q + (of_p - of_q) * pow(q, -1, p) % p * q).to_bytes(256, "big")
        return self.signed[text]


def keys():
    """The published keys, sorted by peer id."""
    stored = tomllib.loads(KEYS.read_text(encoding="utf-8"))["keys"]
    made = [Key(int(row["modulus"], 16), row["exponent"], int(row["secret"], 16)) for row in stored]
    return sorted(made, key=lambda key: key.peer)


def plain(value):
    """A value for JSON: bytes as {"hex": ...}."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def genesis(run_id, manifest):
    """Chapter 02: the chain head of a run without entries."""
    return sha256(b"dilocoxd/2/genesis\0" + run_id.encode() + b"\0" + sha256(manifest))


def entry_hash(fields):
    """Chapter 02."""
    return sha256(b"dilocoxd/2/entry\0" + pack(fields))


def offer(key, run, contribution):
    """Chapter 02: the signature under a contribution. `run`: the genesis head."""
    return [key.public, key.sign(b"dilocoxd/2/offer\0" + run + pack(contribution))]


def vote_text(run, round_index, attempt, parent, digest, unix_ms):
    """Chapter 02: what a vote signs."""
    said = pack([round_index, attempt, parent, digest])
    return b"dilocoxd/2/vote\0" + run + said + struct.pack(">Q", unix_ms)


def signed_vote(key, run, round_index, attempt, parent, digest, unix_ms):
    """Chapter 02: SignedVote."""
    text = vote_text(run, round_index, attempt, parent, digest, unix_ms)
    return [key.peer, attempt, unix_ms, [key.public, key.sign(text)]]


def coordinator_order(run_id, peers, round_index, attempt):
    """Chapter 06, R4."""
    prefix = b"dilocoxd/2/coordinator\0" + f"{run_id}\0{round_index}\0{attempt}\0".encode()
    return sorted(peers, key=lambda peer: sha256(prefix + peer.encode()))
