"""Signs what this site votes and offers, for the round machine, which knows no keys."""

import time
from collections.abc import Callable

from dilocoxd.ids import Digest
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.swarm.discovery.identity import Identity, is_signed_by
from dilocoxd.wire.entry import Contribution, Signature, SignedVote, VoteFor, offer_text, vote_text


def vote_keys(identity: Identity, run: Digest) -> VoteKeys:
    """Signatures for the round machine of the run with this genesis hash."""

    def sign(what: VoteFor) -> SignedVote:
        unix_ms = time.time_ns() // 1_000_000
        signature = Signature(identity.public_key_der, identity.sign(vote_text(run, what, unix_ms)))
        return SignedVote(identity.peer_id, what.attempt, unix_ms, signature)

    return VoteKeys(run, sign, is_signed_by)


def offer_signer(identity: Identity, run: Digest) -> Callable[[Contribution], Signature]:
    """Signs what this site offers in the run with this genesis hash."""
    key = identity.public_key_der
    return lambda contribution: Signature(key, identity.sign(offer_text(run, contribution)))
