"""The identity key: hivemind reads the same peer id from our file; wrong files are one clear sentence."""

import errno
import hashlib
import os
from pathlib import Path

import base58
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from dilocoxd.errors import ConfigError, WireError
from dilocoxd.swarm.discovery import identity

TEXT = b"dilocoxd/2/test\0hello"


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> identity.Identity:
    return identity.create(tmp_path_factory.mktemp("identity") / "identity.key")


def test_key_file_is_private_and_gives_the_same_peer_again(mine: identity.Identity) -> None:
    assert mine.path.stat().st_mode & 0o777 == 0o600
    assert identity.load_or_create(mine.path).peer_id == mine.peer_id
    assert [path.name for path in mine.path.parent.iterdir()] == ["identity.key"]


def test_key_is_made_where_files_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", no_links)
    made = identity.create(tmp_path / "identity.key")
    assert [path.name for path in tmp_path.iterdir()] == ["identity.key"]
    assert identity.load(made.path).peer_id == made.peer_id
    with pytest.raises(ConfigError, match="exists already"):
        identity.create(made.path)
    assert identity.load(made.path).peer_id == made.peer_id and len(list(tmp_path.iterdir())) == 1


def test_peer_id_is_the_hash_of_the_libp2p_public_key(mine: identity.Identity) -> None:
    der = mine.public_key_der
    assert len(der) == 294
    protobuf = b"\x08\x00\x12\xa6\x02" + der
    assert base58.b58decode(mine.peer_id) == b"\x12\x20" + hashlib.sha256(protobuf).digest()


def test_hivemind_reads_the_same_peer_id_from_the_file(mine: identity.Identity) -> None:
    from dilocoxd.swarm.p2pd.node import PeerID

    assert PeerID.from_identity(mine.path.read_bytes()).to_base58() == mine.peer_id


def test_signature_is_bound_to_text_and_key(mine: identity.Identity, tmp_path: Path) -> None:
    signature = mine.sign(TEXT)
    assert identity.verify(mine.public_key_der, TEXT, signature) == mine.peer_id
    other = identity.create(tmp_path / "other.key")
    for key, text, signed in [
        (other.public_key_der, TEXT, signature),
        (mine.public_key_der, TEXT + b"!", signature),
        (mine.public_key_der, b"dilocoxd/2/vote\0hello", signature),
        (mine.public_key_der, TEXT, signature[:-1] + bytes([signature[-1] ^ 1])),
    ]:
        with pytest.raises(WireError, match="bad_signature"):
            identity.verify(key, text, signed)


def test_text_without_a_domain_is_never_signed(mine: identity.Identity) -> None:
    with pytest.raises(AssertionError):
        mine.sign(b"noise-libp2p-static-key:")


def _public_der(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    "key",
    [b"", b"garbage", bytes(5000), _public_der(ec.generate_private_key(ec.SECP256R1())),
     _public_der(rsa.generate_private_key(65537, 1024))],
    ids=["empty", "garbage", "huge", "elliptic", "short"],
)  # fmt: skip
def test_other_keys_than_rsa_2048_are_refused(key: bytes) -> None:
    with pytest.raises(WireError, match="bad_key"):
        identity.verify(key, TEXT, bytes(256))


def test_key_that_others_can_read_is_refused(mine: identity.Identity, tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(mine.path.read_bytes())
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        identity.load(path)


@pytest.mark.parametrize("cut", [0, 3, 10, -1])
def test_damaged_key_is_a_clear_error(mine: identity.Identity, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "identity.key"
    path.touch(0o600)
    path.write_bytes(mine.path.read_bytes()[:cut])
    with pytest.raises(ConfigError, match="damaged"):
        identity.load(path)


def test_no_byte_of_a_key_changes_unseen(mine: identity.Identity, tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.touch(0o600)
    whole = mine.path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"damaged|is not RSA-2048"):
            identity.load(path)


def test_an_existing_key_is_never_overwritten(mine: identity.Identity) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        identity.create(mine.path)
    assert identity.load(mine.path).peer_id == mine.peer_id
