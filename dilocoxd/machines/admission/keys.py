"""Ed25519 keys of authorities and invites (RFC 8032): signatures are made and checked here, nowhere else."""

from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key; `seed` is its 32 bytes as RFC 8032 has them. Never shown by repr."""

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.seed) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, this {len(self.seed)}")

    @property
    def public(self) -> bytes:
        """The public half, 32 bytes."""
        public = Ed25519PrivateKey.from_private_bytes(self.seed).public_key()
        return public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

    def sign(self, text: bytes) -> bytes:
        """64 bytes that `is_signed` accepts for the same text, which starts with its domain."""
        assert text.startswith(b"dilocoxd/"), "a signed text starts with its domain"
        return Ed25519PrivateKey.from_private_bytes(self.seed).sign(text)


def is_signed(public: bytes, text: bytes, signature: bytes) -> bool:
    """Whether `signature` is that of the key `public` over `text`."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True
