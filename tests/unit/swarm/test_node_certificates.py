"""A node's certificate proves its site for a while, to those who take connections. I12.3."""

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from dilocoxd.errors import WireError
from dilocoxd.swarm.direct.certificates import (
    NODE_LATE,
    NODE_SUBJECT,
    Credentials,
    _certificate,
    new_key,
    proven_peer,
)
from dilocoxd.swarm.direct.nodes import (
    NODE_LIFE_S,
    NodeCredentials,
    certify,
    is_from_node,
    life_left_s,
    public_key_of,
)
from dilocoxd.swarm.discovery.identity import Identity, create
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK
from tests.unit.swarm.test_certificates import der_of, shake

LATE_S = NODE_LATE.total_seconds()
Maker = Callable[[Identity, ec.EllipticCurvePrivateKey], bytes]
A_MINUTE_S = 60.0
"""More than this test takes."""


def at_the_end_of_time(a: Identity, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Of a node, with an end that has no later moment."""
    until = datetime.datetime(9999, 12, 31, 23, 59, 59)
    made = a.issue(_certificate(NODE_SUBJECT, a.peer_id, key.public_key(), is_ca=False, until=until))
    return made.public_bytes(serialization.Encoding.DER)


def with_a_name_of_bits(a: Identity, key: ec.EllipticCurvePrivateKey) -> bytes:
    """OpenSSL takes such a name; the library that reads it here refuses to."""
    name = x509.NameAttribute(NameOID.COMMON_NAME, NODE_SUBJECT)
    name._type, name._value = _ASN1Type.BitString, b"\0" + NODE_SUBJECT.encode()
    made = _certificate(NODE_SUBJECT, a.peer_id, key.public_key(), is_ca=False)
    made._subject_name = x509.Name([name])
    return a.issue(made).public_bytes(serialization.Encoding.DER)


UNREADABLE: tuple[Maker, ...] = (at_the_end_of_time, with_a_name_of_bits)
"""Signed by a member, which may sign anything."""


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> list[Identity]:
    folder = tmp_path_factory.mktemp("keys")
    return [create(folder / f"{name}.key") for name in "ab"]


def test_node_is_taken_for_its_site_and_known_as_a_node(identities: list[Identity]) -> None:
    a, b = identities
    key, of_b = new_key(), Credentials(b)
    of_node = NodeCredentials(key, certify(a, public_key_of(key)))
    server = of_b.server_context()
    server.load_verify_locations(cadata=of_b.anchor(a.peer_id, a.public_key_der))
    client = of_node.client_context((of_node.anchor(b.peer_id, b.public_key_der),), PROTOCOL_BULK)
    ours, theirs = shake(client, server)
    shown = theirs.getpeercert(True)
    assert proven_peer(shown, {a.peer_id: a.public_key_der}) == a.peer_id
    assert is_from_node(shown)
    assert not is_from_node(ours.getpeercert(True)) and not is_from_node(der_of(a))


@pytest.mark.parametrize("life_s", [A_MINUTE_S - LATE_S, NODE_LIFE_S, NODE_LIFE_S + LATE_S])
def test_certificate_of_a_node_lasts_an_hour_by_the_clock_of_who_takes_it(
    identities: list[Identity], life_s: float
) -> None:
    a, _ = identities
    made = certify(a, public_key_of(new_key()), life_s=life_s)
    assert proven_peer(made, {a.peer_id: a.public_key_der}) == a.peer_id
    left_s = life_left_s(made)
    assert left_s is not None and 0 <= life_s + LATE_S - left_s < A_MINUTE_S
    assert life_left_s(der_of(a)) is None, "of a daemon"


@pytest.mark.parametrize(
    ("life_s", "why"),
    [
        (-A_MINUTE_S - LATE_S, "has ended"),
        (NODE_LIFE_S + LATE_S + A_MINUTE_S, "for too long"),
        (10 * 365 * 86_400.0, "for too long"),
    ],
)
def test_certificate_of_a_node_that_is_over_or_for_too_long_is_refused(
    identities: list[Identity], life_s: float, why: str
) -> None:
    a, _ = identities
    with pytest.raises(WireError, match=why):
        proven_peer(certify(a, public_key_of(new_key()), life_s=life_s), {a.peer_id: a.public_key_der})


@pytest.mark.parametrize("make", UNREADABLE)
def test_certificate_that_nobody_can_read_is_refused_like_any_other(identities: list[Identity], make: Maker) -> None:
    a, _ = identities
    with pytest.raises(WireError, match="bad_handshake"):
        proven_peer(make(a, new_key()), {a.peer_id: a.public_key_der})


def test_certificate_that_a_node_makes_itself_proves_nothing(identities: list[Identity]) -> None:
    a, b = identities
    forged = certify(b, public_key_of(new_key()))
    with pytest.raises(WireError, match="not met"):
        proven_peer(forged, {a.peer_id: a.public_key_der})


def test_only_keys_of_the_one_kind_are_certified(identities: list[Identity]) -> None:
    others = [
        rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key(),
        ec.generate_private_key(ec.SECP384R1()).public_key(),
    ]
    shown = [
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo) for key in others
    ]
    for public_key in (b"", b"\x30\x03\x02\x01\x00", *shown):
        with pytest.raises(WireError, match="bad_key"):
            certify(identities[0], public_key)


def test_what_is_no_certificate_gives_a_node_none() -> None:
    with pytest.raises(WireError, match="malformed"):
        NodeCredentials(new_key(), Path(__file__).read_bytes())
