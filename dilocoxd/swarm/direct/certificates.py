"""Certificates of data connections: a fresh TLS key of each daemon, certified by its identity key.

The peer id of the other end follows from the RSA key that signed its certificate. TLS is told whom to believe by
certificates that we make ourselves, one for the identity key of each peer we have met: who is not among them does not
get through the handshake. What TLS found is checked here once more, for a chain of certificates could name another
issuer than the key that we know. Source: protocol/03-identity.md, I12.
"""

import datetime
import os
import ssl
from collections.abc import Iterable, Mapping
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.swarm.streams.streams import PROTOCOL_BULK, PROTOCOL_FETCH

PROTOCOLS: Final = (PROTOCOL_BULK, PROTOCOL_FETCH)
"""What a data connection may be for; its opener says so by ALPN."""
SUBJECT: Final = "dilocoxd data"
CERTIFICATE_BYTES_MAX: Final = 4096
_SINCE: Final = datetime.datetime(2000, 1, 1)
_UNTIL: Final = datetime.datetime(9999, 12, 31)
"""No clock decides about daemons: their keys live as long as they do. Those of nodes (nodes.py) end."""
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, for which `ssl` has no name: dates that others write are not compared."""
NODE_SUBJECT: Final = "dilocoxd node"
"""Of a key that one machine of a site has beside its daemon (I12.3)."""
NODE_LIFE: Final = datetime.timedelta(hours=1)
"""Of its certificate at most: so long a key that was stolen from a node is good for anything."""
NODE_LATE: Final = datetime.timedelta(seconds=60)
"""So far clocks of two sites may be apart (I7)."""
_NOT_RIGHT: Final = (ValueError, TypeError, OverflowError)
"""What the library, and dates, make of a field that OpenSSL lets through: it reads fields when they are asked for."""


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: str,
    issuer: str,
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
    *,
    is_ca: bool,
    until: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    constraints = x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None)
    return x509.CertificateBuilder(
        _name(issuer), _name(subject), key, x509.random_serial_number(), _SINCE, until or _UNTIL
    ).add_extension(constraints, critical=True)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Of a TLS certificate (I12.1)."""
    return ec.generate_private_key(ec.SECP256R1())


class Credentials:
    """Our TLS key with its certificate, and how others are recognised by theirs."""

    def __init__(self, identity: Identity) -> None:
        own = new_key()
        self._hold(own, identity.issue(_certificate(SUBJECT, identity.peer_id, own.public_key(), is_ca=False)))

    def _hold(self, own: ec.EllipticCurvePrivateKey, issued: x509.Certificate) -> None:
        self._pem = issued.public_bytes(serialization.Encoding.PEM) + own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._anchor_key = new_key()

    def anchor(self, peer: PeerId, public_key_der: bytes) -> bytes:
        """DER of the certificate by which TLS believes what `peer` has certified. Its key is known to be RSA-2048."""
        key = serialization.load_der_public_key(public_key_der)
        assert isinstance(key, rsa.RSAPublicKey), "keys are checked where records are"
        made = _certificate(peer, "dilocoxd anchor", key, is_ca=True).sign(self._anchor_key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.DER)

    def server_context(self) -> ssl.SSLContext:
        """For those who come; anchors are added by `load_verify_locations`."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        context.set_alpn_protocols(list(PROTOCOLS))
        return context

    def client_context(self, anchors: Iterable[bytes], protocol: str) -> ssl.SSLContext:
        """For going to one peer, whose anchor alone is believed."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols([protocol])
        for anchor in anchors:
            context.load_verify_locations(cadata=anchor)
        return context

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the peer id counts, not where it is
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
        memory = os.memfd_create("certificate", os.MFD_CLOEXEC)  # `ssl` reads keys from files only
        try:
            os.write(memory, self._pem)
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
        return context


def is_of_node(certificate: x509.Certificate) -> bool:
    """A node showed it, not the daemon of its site."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return [name.value for name in names] == [NODE_SUBJECT]


def life_left(certificate: x509.Certificate) -> datetime.timedelta:
    """So much longer we let in the node that shows it, by our clock; below 0: no more."""
    return certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC) + NODE_LATE  # never a later date


def _check_life(certificate: x509.Certificate) -> None:
    left = life_left(certificate)
    if left < datetime.timedelta(0):
        raise WireError("bad_handshake", "the certificate of a node has ended; look at the clocks of both sites")
    if left > NODE_LIFE + 2 * NODE_LATE:
        raise WireError("bad_handshake", "the certificate of a node is for too long; look at the clocks of both sites")


def proven_peer(certificate_der: bytes | None, keys: Mapping[PeerId, bytes]) -> PeerId:
    """Whose identity key signed the certificate. `keys`: DER of those that we know. Raises WireError(bad_handshake)."""
    if not certificate_der or len(certificate_der) > CERTIFICATE_BYTES_MAX:
        raise WireError("bad_handshake", "no certificate, or one that is too long")
    try:
        found = x509.load_der_x509_certificate(certificate_der)
        names = found.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
        peer = PeerId(str(names[0].value)) if len(names) == 1 else PeerId("")
        if peer not in keys:
            raise WireError("bad_handshake", "a certificate of somebody whom we have not met")
        key = serialization.load_der_public_key(keys[peer])
        assert isinstance(key, rsa.RSAPublicKey), "keys are checked where records are"
        key.verify(found.signature, found.tbs_certificate_bytes, padding.PKCS1v15(), hashes.SHA256())
        if is_of_node(found):
            _check_life(found)
    except (*_NOT_RIGHT, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise WireError("bad_handshake", f"a certificate that is not right: {type(error).__name__}") from None
    return peer
