"""What a site's vote on an eviction and one on the authorities have in common: its signature, and why it is refused."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from dilocoxd.daemon.chain.contributors import ContributorRoll
from dilocoxd.errors import CommandRefused, WireError
from dilocoxd.swarm.discovery.identity import Identity
from dilocoxd.wire.admission import MemberVote
from dilocoxd.wire.entry import Signature

SETTLED_ENTRIES: Final = 8
"""So far below the tip a vote stands where it can: a fork of a few entries must not make it count nothing."""


def signed_vote(
    identity: Identity, chain: ContributorRoll, height: int, text: Callable[[int, bytes], bytes]
) -> MemberVote:
    """Our vote at this height of our chain; `text` makes what is signed of height and the hash there."""
    head = chain.hash_at(height)
    assert head is not None, "the tip and what is below it have a hash"
    value = identity.sign(text(height, head))
    return MemberVote(identity.peer_id, height, head, Signature(identity.public_key_der, value))


@contextlib.contextmanager
def refused_in_words(what: str) -> Iterator[None]:
    """What is wrong with `what`, an operator's or our own, as a CommandRefused."""
    try:
        yield
    except WireError as error:
        raise CommandRefused(f"{what} is not accepted: {error.detail}") from error
    except ValueError as error:
        raise CommandRefused(f"{what} is no hex text ({error})") from error
