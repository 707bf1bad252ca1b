"""Certificates of data connections prove a peer id, or nothing. I12."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dilocoxd.errors import WireError
from dilocoxd.swarm.direct.certificates import SUBJECT, Credentials, _certificate, proven_peer
from dilocoxd.swarm.discovery.identity import Identity, create
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    folder = tmp_path_factory.mktemp("keys")
    return [create(folder / f"{name}.key") for name in "abc"]


def der_of(identity: Identity, *, issuer: str = "", signed_by: Identity | None = None) -> bytes:
    """A certificate as its daemon makes it; `issuer`, `signed_by`: with a lie in it."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    builder = _certificate(SUBJECT, issuer or identity.peer_id, key, is_ca=False)
    return (signed_by or identity).issue(builder).public_bytes(serialization.Encoding.DER)


def shake(client: ssl.SSLContext, server: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake in memory. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="dilocoxd")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours, theirs


def test_both_ends_know_each_other_after_the_handshake(identities: list[Identity]) -> None:
    a, b, _ = identities
    of_a, of_b = Credentials(a), Credentials(b)
    server = of_b.server_context()
    server.load_verify_locations(cadata=of_b.anchor(a.peer_id, a.public_key_der))
    client = of_a.client_context((of_a.anchor(b.peer_id, b.public_key_der),), PROTOCOL_BULK)
    ours, theirs = shake(client, server)
    assert ours.version() == theirs.version() == "TLSv1.3"
    assert theirs.selected_alpn_protocol() == PROTOCOL_BULK
    assert proven_peer(ours.getpeercert(True), {b.peer_id: b.public_key_der}) == b.peer_id
    assert proven_peer(theirs.getpeercert(True), {a.peer_id: a.public_key_der}) == a.peer_id


@pytest.mark.parametrize(("since", "until"), [(1990, 1991), (2990, 2991)])
def test_dates_in_certificates_are_not_compared(
    identities: list[Identity], monkeypatch: pytest.MonkeyPatch, since: int, until: int
) -> None:
    """Others may write any dates, and clocks may be wrong: both ends still shake hands."""
    a, b, _ = identities
    with monkeypatch.context() as patch:
        patch.setattr("dilocoxd.swarm.direct.certificates._SINCE", datetime.datetime(since, 1, 1))
        patch.setattr("dilocoxd.swarm.direct.certificates._UNTIL", datetime.datetime(until, 1, 1))
        of_a, of_b = Credentials(a), Credentials(b)
        server = of_b.server_context()
        server.load_verify_locations(cadata=of_b.anchor(a.peer_id, a.public_key_der))
        client = of_a.client_context((of_a.anchor(b.peer_id, b.public_key_der),), PROTOCOL_BULK)
    ours, theirs = shake(client, server)
    assert ours.version() == theirs.version() == "TLSv1.3"


def test_nobody_shakes_hands_with_somebody_else_than_was_meant(identities: list[Identity]) -> None:
    a, b, c = identities
    of_a, of_b = Credentials(a), Credentials(b)
    server = of_b.server_context()
    server.load_verify_locations(cadata=of_b.anchor(c.peer_id, c.public_key_der))
    meant_c = of_a.client_context((of_a.anchor(c.peer_id, c.public_key_der),), PROTOCOL_BULK)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake(meant_c, server)
    meant_b = of_a.client_context((of_a.anchor(b.peer_id, b.public_key_der),), PROTOCOL_BULK)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake(meant_b, server)


def test_member_that_certifies_a_key_in_the_name_of_another_is_found_out(identities: list[Identity]) -> None:
    a, b, _ = identities
    keys = {a.peer_id: a.public_key_der, b.peer_id: b.public_key_der}
    assert proven_peer(der_of(a), keys) == a.peer_id
    for certificate in (der_of(a, issuer=b.peer_id), der_of(b, signed_by=a)):
        with pytest.raises(WireError, match="InvalidSignature"):
            proven_peer(certificate, keys)


def test_intermediate_certificate_in_the_name_of_another_does_not_pass(identities: list[Identity]) -> None:
    a, b, _ = identities
    between, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    as_b = a.issue(_certificate(b.peer_id, a.peer_id, between.public_key(), is_ca=True))
    forged = _certificate(SUBJECT, b.peer_id, leaf.public_key(), is_ca=False).sign(between, hashes.SHA256())
    assert as_b.subject == forged.issuer == x509.Name.from_rfc4514_string(f"CN={b.peer_id}")
    keys = {a.peer_id: a.public_key_der, b.peer_id: b.public_key_der}
    with pytest.raises(WireError, match="bad_handshake"):
        proven_peer(forged.public_bytes(serialization.Encoding.DER), keys)


@pytest.mark.parametrize("certificate", [None, b"", b"\x30\x03\x02\x01\x00", b"\x30" * 5000])
def test_what_is_no_certificate_proves_nothing(certificate: bytes | None, identities: list[Identity]) -> None:
    with pytest.raises(WireError, match="bad_handshake"):
        proven_peer(certificate, {identities[0].peer_id: identities[0].public_key_der})


def test_certificate_of_somebody_unknown_proves_nothing(tmp_path: Path, identities: list[Identity]) -> None:
    with pytest.raises(WireError, match="not met"):
        proven_peer(der_of(create(tmp_path / "k")), {identities[0].peer_id: identities[0].public_key_der})
