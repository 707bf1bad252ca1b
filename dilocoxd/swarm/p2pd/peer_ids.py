"""Peer ids as libp2p has them: base58 of a multihash. Decides nothing; names nobody."""

import secrets

import base58

from dilocoxd.errors import PeerError
from dilocoxd.ids import PeerId


def fresh_peer_id() -> PeerId:
    """A well-formed peer id that nobody has."""
    return PeerId(base58.b58encode(b"\x12\x20" + secrets.token_bytes(32)).decode("ascii"))


def id_bytes(peer: PeerId) -> bytes:
    """The multihash. Raises PeerError."""
    try:
        return base58.b58decode(peer)
    except ValueError as error:
        raise PeerError(f"{peer!r} is no peer id") from error
