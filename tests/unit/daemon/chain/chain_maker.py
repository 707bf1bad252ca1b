"""Small valid chains for tests: entries with real hashes and votes that a test key list accepts."""

import hashlib
from types import MappingProxyType

from dilocoxd.ids import Digest, PeerId, PhaseId, RoundIndex, RunId
from dilocoxd.rounds.chain import ChainView
from dilocoxd.rounds.limits import VoteKeys
from dilocoxd.wire.entry import Contribution, Entry, SignedEntry, SignedVote, entry_hash, genesis_hash, vote_text

RUN = RunId("test-0123456789abcdef")
GENESIS = genesis_hash(RUN, b"\1" * 32)
LENGTHS = (5, 3)


def sign(peer: PeerId, text: bytes) -> SignedVote:
    """A stand-in signature: the hash of peer and text."""
    return SignedVote(peer, b"key", hashlib.sha256(peer.encode() + text).digest())


KEYS = VoteKeys(
    sign=lambda text: sign(PeerId("A"), text),
    verify=lambda vote, text: vote.signature == sign(vote.peer, text).signature,
)


def base_view() -> ChainView:
    """The empty chain."""
    return ChainView(RUN, RoundIndex(0), GENESIS, Digest(bytes(32)), last_phases=MappingProxyType({}))


def payload_of(index: int, salt: bytes = b"") -> bytes:
    """8 bytes of result payload."""
    return hashlib.sha256(b"payload" + index.to_bytes(8, "big") + salt).digest()[: sum(LENGTHS)]


def chain(
    length: int, *, peers: tuple[str, ...] = ("A", "B"), tokens: int = 10, start: int = 0, parent: Digest = GENESIS,
    salt: bytes = b"",
) -> list[SignedEntry]:  # fmt: skip
    """Entries start..start+length-1 after `parent`; every peer contributes its phase = round to each."""
    found = []
    for index in range(start, start + length):
        payload = payload_of(index, salt)
        parts = (payload[: LENGTHS[0]], payload[LENGTHS[0] :])
        contributions = tuple(
            Contribution(PeerId(p), PhaseId(index), RoundIndex(index), 1, tokens, b"\2" * 32) for p in peers
        )
        entry = Entry(
            RUN, RoundIndex(index), parent, bytes(32), contributions,
            tuple(hashlib.sha256(part).digest() for part in parts), 0, 0, 1,
        )  # fmt: skip
        parent = entry_hash(entry)
        votes = tuple(sign(PeerId(p), vote_text(RUN, parent)) for p in peers)
        found.append(SignedEntry(entry, votes, 0))
    return found
