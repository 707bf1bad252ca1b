"""Small valid chains for tests: entries with real hashes and votes that a test key list accepts."""

import hashlib
from types import MappingProxyType

from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.limits import VoteKeys
from dilocoxd.wire.entry import (
    Contribution,
    Entry,
    Signature,
    SignedEntry,
    SignedVote,
    VoteFor,
    entry_hash,
    genesis_hash,
    offer_text,
    vote_text,
    voted_for,
)

RUN = RunId("test-0123456789abcdef")
GENESIS = genesis_hash(RUN, b"\1" * 32)
LENGTHS = (5, 3)
UNIX_MS = 1_760_000_000_000


def signature_of(peer: PeerId, text: bytes) -> Signature:
    """A stand-in: the hash of peer and text."""
    return Signature(b"key", hashlib.sha256(peer.encode() + text).digest())


def sign(peer: PeerId, what: VoteFor, unix_ms: int | None = None) -> SignedVote:
    """The vote of this peer, a second after that for the entry before."""
    at = UNIX_MS + 1000 * what.round if unix_ms is None else unix_ms
    return SignedVote(peer, what.attempt, at, signature_of(peer, vote_text(GENESIS, what, at)))


KEYS = VoteKeys(
    run=GENESIS,
    sign=lambda what: sign(PeerId("A"), what),
    verify=lambda peer, signature, text: signature == signature_of(peer, text),
)


def base_view() -> ChainView:
    """The empty chain."""
    return ChainView(RUN, RoundIndex(0), GENESIS, Digest(bytes(32)), last_phases=MappingProxyType({}))


def payload_of(index: int, salt: bytes = b"") -> bytes:
    """8 bytes of result payload."""
    return hashlib.sha256(b"payload" + index.to_bytes(8, "big") + salt).digest()[: sum(LENGTHS)]


def chain(
    length: int, *, peers: tuple[str, ...] = ("A", "B"), tokens: int = 10, start: int = 0, parent: Digest = GENESIS,
    salt: bytes = b"", before: tuple[str, ...] | None = None,
) -> list[SignedEntry]:  # fmt: skip
    """Entries start..start+length-1 after `parent`; every peer contributes its phase = round to each. `before`: who
    contributed to the entry before them (R7.6), if not these peers."""
    found = []
    voters: tuple[PeerId, ...] = tuple(sorted(map(PeerId, before or peers))) if start else ()
    for index in range(start, start + length):
        payload = payload_of(index, salt)
        parts = (payload[: LENGTHS[0]], payload[LENGTHS[0] :])
        contributions = tuple(
            Contribution(PeerId(p), PhaseId(index), RoundIndex(index), 1, tokens, b"\2" * 32) for p in peers
        )
        entry = Entry(
            RUN, RoundIndex(index), parent, bytes(32), contributions,
            tuple(hashlib.sha256(part).digest() for part in parts), 0, 0, 1, voters, (),
        )  # fmt: skip
        parent, voters = entry_hash(entry), tuple(sorted(map(PeerId, peers)))
        found.append(signed_by_all(entry))
    return found


def signed_by_all(entry: Entry) -> SignedEntry:
    """With the offers and votes of its contributors."""
    what = voted_for(entry, entry_hash(entry), Attempt(0))
    offers = tuple(signature_of(c.peer, offer_text(GENESIS, c)) for c in entry.contributions)
    return SignedEntry(entry, offers, tuple(sign(c.peer, what) for c in entry.contributions))
