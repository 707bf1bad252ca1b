"""Certificates by which a node of a site opens data connections in the site's name.

The node makes its own TLS key; the daemon, which alone has the identity, certifies it for an hour and again before that
is over. To other sites such a connection is one of the site's: same peer id, same budgets, evicted with it. Source:
protocol/03-identity.md, I12.3; docs/adr/0045-nodes-send-payloads.md.
"""

import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.direct.certificates import (
    NODE_LIFE,
    NODE_SUBJECT,
    Credentials,
    _certificate,
    is_of_node,
    life_left,
)
from dilocoxd.swarm.discovery.identity import Identity

NODES_SINCE_MINOR: Final = 2
"""Minor version of the protocol from which on connections of nodes are told from those of daemons."""
PORTS_SINCE_MINOR: Final = 3
"""Likewise, from which on nodes take contributions at ports of their own (S12)."""
NODE_LIFE_S: Final = NODE_LIFE.total_seconds()
"""Of a certificate, which is renewed at half of it."""


def way_to_node(peer: PeerId, number: int) -> PeerId:
    """What data planes and senders call the way to a port of a node of `peer`, beside that to `peer` itself."""
    return PeerId(f"{peer}#{number}")


def site_of(way: PeerId) -> PeerId:
    """The peer that a way leads to."""
    return PeerId(way.partition("#")[0])


def is_to_node(way: PeerId) -> bool:
    """Whether it leads to a port of a node."""
    return "#" in way


def certify(identity: Identity, public_key_der: bytes, *, life_s: float = NODE_LIFE_S) -> bytes:
    """DER of a certificate of a node's key, in the name of `identity`. Raises WireError(bad_key) if that is none."""
    try:
        key = serialization.load_der_public_key(public_key_der)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise WireError("bad_key", f"of a node: {type(error).__name__}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise WireError("bad_key", "a node has another key than ECDSA P-256")
    until = datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=life_s)
    issued = identity.issue(_certificate(NODE_SUBJECT, identity.peer_id, key, is_ca=False, until=until))
    return issued.public_bytes(serialization.Encoding.DER)


def public_key_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """DER, as it is certified."""
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip


class NodeCredentials(Credentials):
    """Of a node, while its certificate lasts."""

    def __init__(self, own: ec.EllipticCurvePrivateKey, certificate_der: bytes) -> None:
        """Raises WireError if that is no certificate."""
        try:
            issued = x509.load_der_x509_certificate(certificate_der)
        except (ValueError, x509.InvalidVersion) as error:
            raise WireError("malformed", f"certificate of a node: {type(error).__name__}") from None
        self._hold(own, issued)


def is_from_node(certificate_der: bytes | None) -> bool:
    """Whether a node showed this certificate, which `proven_peer` has taken."""
    return certificate_der is not None and is_of_node(x509.load_der_x509_certificate(certificate_der))


def life_left_s(certificate_der: bytes | None) -> float | None:
    """So many seconds longer the node that showed it is let in; None: a daemon showed it, and no clock decides."""
    if certificate_der is None:
        return None
    certificate = x509.load_der_x509_certificate(certificate_der)
    return life_left(certificate).total_seconds() if is_of_node(certificate) else None
