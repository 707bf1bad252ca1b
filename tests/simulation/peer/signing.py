"""Signatures that only their owner can make in the simulation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from dilocoxd.ids import PeerId
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.wire.entry import Contribution, Signature, SignedVote, VoteFor, offer_text, vote_text
from tests.simulation.peer.disk import GENESIS

UNIX_MS = 1_760_000_000_000
"""When every simulation begins."""


def keys_of(peer: str, clock: Callable[[], int] = lambda: UNIX_MS) -> VoteKeys:
    """The keys of this peer."""

    def sign(what: VoteFor) -> SignedVote:
        unix_ms = clock()
        return SignedVote(PeerId(peer), what.attempt, unix_ms, signature_of(peer, vote_text(GENESIS, what, unix_ms)))

    def verify(name: PeerId, signature: Signature, text: bytes) -> bool:
        return signature == signature_of(name, text)

    return VoteKeys(GENESIS, sign, verify)


def signature_of(peer: str, text: bytes) -> Signature:
    """The only one of this peer under the text."""
    value = hashlib.blake2b(text, key=b"key of " + peer.encode(), digest_size=16).digest()
    return Signature(peer.encode(), value)


def offer_of(contribution: Contribution) -> Signature:
    """Its peer's."""
    return signature_of(contribution.peer, offer_text(GENESIS, contribution))
