"""Who we are: the RSA-2048 identity key, the peer id made from it, and signatures over bytes.

The key file has the layout that p2pd reads (libp2p `PrivateKey{Type=RSA, Data=PKCS#1 DER}` protobuf), written here by
hand because it is two fields; so the daemon and p2pd prove the same identity. Peer id = base58(multihash(sha256 of the
`PublicKey` protobuf)), libp2p peer-ids specification. Signatures are RSASSA-PKCS1-v1_5 with SHA-256 (deterministic).
Every signed text starts with its domain, ``dilocoxd/2/<what>`` and a zero byte, so that no signature is valid for
anything else, libp2p's own handshake included.
"""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import base58
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from dilocoxd.errors import ConfigError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.credentials import is_credential
from dilocoxd.store.durable import NO_LINKS, fsync_directory
from dilocoxd.wire.entry import Signature

KEY_BITS: Final = 2048
PUBLIC_KEY_BYTES_MAX: Final = 1024
DOMAIN_PREFIX: Final = b"dilocoxd/2/"
SIGNATURE_BYTES: Final = KEY_BITS // 8
_PROTOBUF_RSA_HEAD: Final = b"\x08\x00\x12"  # field 1 (key type) = 0 = RSA, then field 2 (data), length-delimited
_MULTIHASH_SHA256: Final = b"\x12\x20"


def _wrap_protobuf(data: bytes) -> bytes:
    length, varint = len(data), bytearray()
    while length >= 0x80:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    varint.append(length)
    return _PROTOBUF_RSA_HEAD + bytes(varint) + data


def _unwrap_protobuf(blob: bytes) -> bytes:
    if not blob.startswith(_PROTOBUF_RSA_HEAD):
        raise ValueError("not an RSA key in libp2p layout")
    length, shift, position = 0, 0, len(_PROTOBUF_RSA_HEAD)
    while True:
        if position >= len(blob) or shift > 21:
            raise ValueError("length field is broken")
        byte = blob[position]
        length |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            break
    if len(blob) != position + length:
        raise ValueError(f"holds {len(blob) - position} bytes of key, announces {length}")
    return blob[position:]


def peer_id_of(public_key_der: bytes) -> PeerId:
    """Peer id of a public key (DER, SubjectPublicKeyInfo)."""
    digest = hashlib.sha256(_wrap_protobuf(public_key_der)).digest()
    return PeerId(base58.b58encode(_MULTIHASH_SHA256 + digest).decode("ascii"))


def verify(public_key_der: bytes, text: bytes, signature: bytes) -> PeerId:
    """Peer id of the key that signed `text`. Raises WireError(bad_key | bad_signature)."""
    if len(public_key_der) > PUBLIC_KEY_BYTES_MAX or len(signature) != SIGNATURE_BYTES:
        raise WireError("bad_key", f"key of {len(public_key_der)} bytes, signature of {len(signature)}")
    try:
        key = serialization.load_der_public_key(public_key_der)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise WireError("bad_key", type(error).__name__) from None
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size != KEY_BITS:
        raise WireError("bad_key", f"want RSA-{KEY_BITS}")
    try:
        key.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature:
        raise WireError("bad_signature", f"over {len(text)} bytes") from None
    return peer_id_of(public_key_der)


def is_signed_by(peer: PeerId, signature: Signature, text: bytes) -> bool:
    """Whether the signature is right for `text` and its key is that of the peer."""
    try:
        return verify(signature.public_key, text, signature.value) == peer
    except WireError:
        return False


@dataclass(frozen=True, slots=True)
class Identity:
    """A loaded identity key; `path` is what p2pd gets."""

    path: Path
    peer_id: PeerId
    public_key_der: bytes
    _key: rsa.RSAPrivateKey

    def sign(self, text: bytes) -> bytes:
        """256 bytes that `verify` accepts for the same text (about 1 ms). `text` starts with its domain."""
        assert text.startswith(DOMAIN_PREFIX), "a signed text starts with its domain"
        return self._key.sign(text, padding.PKCS1v15(), hashes.SHA256())

    def issue(self, certificate: x509.CertificateBuilder) -> x509.Certificate:
        """The certificate, signed with our key. It begins with the byte 0x30, so it is no text with a domain (I12)."""
        return certificate.sign(self._key, hashes.SHA256())


def create(path: Path) -> Identity:
    """Write a new key to `path` (mode 0600, never over an existing file) and load it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    der = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_wrap_protobuf(der))
            file.flush()
            os.fsync(file.fileno())
        _name(temporary, path)
        fsync_directory(path.parent)
    except FileExistsError:
        raise ConfigError(f"identity key {path} exists already; remove it first if a new identity is wanted") from None
    finally:
        temporary.unlink(missing_ok=True)
    return load(path)


def _name(temporary: Path, path: Path) -> None:
    """Let `temporary` be `path`. Raises FileExistsError, OSError."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        temporary.replace(path)


def load(path: Path) -> Identity:
    """The identity in `path`. Raises ConfigError if it is missing, readable by others, or no RSA-2048 key."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        blob = path.read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"identity key {path} is missing; {_remedy(path)}") from error
    except OSError as error:
        raise ConfigError(f"identity key {path} cannot be read ({error.strerror}); check path and owner") from error
    if mode & 0o077 and not is_credential(path):
        raise ConfigError(f"identity key {path} has mode {mode:04o}, others could read it; run: chmod 600 {path}")
    try:
        key = serialization.load_der_private_key(
            _unwrap_protobuf(blob), password=None, unsafe_skip_rsa_key_validation=True
        )
        if not isinstance(key, rsa.RSAPrivateKey) or key.key_size != KEY_BITS:
            raise ConfigError(f"identity key {path} is not RSA-{KEY_BITS}; {_remedy(path)}")
        _check(key)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"identity key {path} is damaged ({error}); {_remedy(path)}") from error
    public_der = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return Identity(path, peer_id_of(public_der), public_der, key)


def _check(key: rsa.RSAPrivateKey) -> None:
    """ValueError unless the numbers of the key go together (RFC 8017, 3.2), by which any damage is seen.

    Whether its primes are prime takes 36 ms, at each start of a daemon and of most commands, and is not in question for
    a key that we made.
    """
    numbers = key.private_numbers()
    p, q, public = numbers.p, numbers.q, numbers.public_numbers
    if min(p, q) < 2 or p * q != public.n or numbers.iqmp * q % p != 1:
        raise ValueError("its primes do not go together")
    if (numbers.d % (p - 1), numbers.d % (q - 1)) != (numbers.dmp1, numbers.dmq1):
        raise ValueError("its exponents are not of its primes")
    if public.e * numbers.dmp1 % (p - 1) != 1 or public.e * numbers.dmq1 % (q - 1) != 1:
        raise ValueError("its exponents do not go together")


def _remedy(path: Path) -> str:
    if is_credential(path):
        return "restore it where the service manager takes it from"
    return f"restore it, or make a new one with: dilocoxd identity new {path.parent}"


def load_or_create(path: Path) -> Identity:
    """The identity in `path`, made first if there is none."""
    return load(path) if path.exists() else create(path)
