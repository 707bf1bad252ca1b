"""Ed25519 signatures (RFC 8032, 5.1) in plain Python, for the generators: slow, and not for secrets."""

import hashlib

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, PRIME) % PRIME
IDENTITY = (0, 1)


def add(one, other):
    """Sum of two points of the twisted Edwards curve, affine."""
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, PRIME)
    y = (y1 * y2 + x1 * x2) * pow(1 - product, -1, PRIME)
    return x % PRIME, y % PRIME


def times(scalar, point):
    result = IDENTITY
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point, scalar = add(point, point), scalar >> 1
    return result


def base_point():
    """The point with y = 4/5 and even x."""
    y = 4 * pow(5, -1, PRIME) % PRIME
    square = (y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if x * x % PRIME != square:
        x = x * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    return (PRIME - x if x & 1 else x), y


BASE = base_point()


def encoded(point):
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def hashed(*parts):
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


class EdKey:
    """A key made from its 32-byte seed."""

    def __init__(self, seed):
        digest = hashlib.sha512(seed).digest()
        self.seed, self.prefix = seed, digest[32:]
        self.scalar = int.from_bytes(digest[:32], "little") & (2**254 - 8) | 2**254
        self.public = encoded(times(self.scalar, BASE))

    def sign(self, text):
        nonce = hashed(self.prefix, text) % ORDER
        point = encoded(times(nonce, BASE))
        challenge = hashed(point, self.public, text) % ORDER
        return point + ((nonce + challenge * self.scalar) % ORDER).to_bytes(32, "little")
