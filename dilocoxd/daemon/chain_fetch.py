"""Fetches the part of a peer's chain that we lack, and proves it: hashes, votes, caps, no contribution twice.

The answer to `chain/<from>` is believed only after `check_branch`; payloads are bound by the entries' hashes.
"""

import asyncio
import hashlib
import itertools
import os
from dataclasses import dataclass
from typing import Final

from dilocoxd.daemon.library import CHAIN_BYTES_MAX, parse_chain
from dilocoxd.errors import WireError
from dilocoxd.ids import Digest, PeerId
from dilocoxd.rounds.chain import ChainView, entry_tokens
from dilocoxd.rounds.limits import RoundLimits, VoteKeys
from dilocoxd.store.log import EntryLog
from dilocoxd.swarm.fetch import FetchClient
from dilocoxd.wire.entry import ENTRY_BYTES_MAX, Entry, SignedEntry, entry_hash, vote_text

BRANCH_ENTRIES_MAX: Final = 1 << 20
FIRST_STEP_BACK: Final = 16
BYTES_MAX: Final = CHAIN_BYTES_MAX + ENTRY_BYTES_MAX + 4


@dataclass(frozen=True, slots=True)
class Branch:
    """A peer's entries from `fork` on: the first round in which its chain differs from ours or goes on."""

    fork: int
    entries: tuple[SignedEntry, ...]

    @property
    def tokens(self) -> int:
        return sum(entry_tokens(signed.entry) for signed in self.entries)

    @property
    def tip(self) -> int:
        return self.fork + len(self.entries)


async def fetch_branch(client: FetchClient, peer: PeerId, log: EntryLog, start: int) -> Branch:
    """The peer's branch. Raises PeerError, WireError."""
    step = FIRST_STEP_BACK
    first = min(start, log.height)
    while True:
        found = await _fetch_from(client, peer, first)
        if found and found[0].entry.parent == log.hash_at(first):
            break
        if first == 0:
            if not found:
                return Branch(0, ())
            raise WireError("malformed", "its first entry does not start from the genesis of this run")
        first = max(0, first - step)
        step *= 4
    while (more := await _fetch_from(client, peer, first + len(found))) and len(found) < BRANCH_ENTRIES_MAX:
        found += more
    same = itertools.takewhile(
        lambda pair: pair[0] < log.height and entry_hash(pair[1].entry) == log.hash_at(pair[0] + 1),
        enumerate(found, first),
    )
    num_same = sum(1 for _ in same)
    return Branch(first + num_same, tuple(found[num_same:]))


async def _fetch_from(client: FetchClient, peer: PeerId, first: int) -> list[SignedEntry]:
    data = await client.fetch_bytes(peer, f"chain/{first}", bytes_max=BYTES_MAX)
    return await asyncio.to_thread(parse_chain, data, first)


def check_branch(branch: Branch, base: ChainView, limits: RoundLimits, keys: VoteKeys) -> None:
    """Raises WireError unless every entry continues the chain, keeps its caps and was voted for by contributors.

    `base` is the view of the chain below the fork. Signatures take about 0.1 ms each: call it in a thread.
    """
    parent, last_phases = base.head, dict(base.last_phases)
    for signed in branch.entries:
        entry = signed.entry
        if entry.run_id != base.run_id or entry.parent != parent:
            raise WireError("malformed", f"entry {entry.round} does not continue the chain")
        for contribution in entry.contributions:
            is_bounded = contribution.tokens <= limits.tokens_max and contribution.inner_steps <= limits.inner_steps_max
            if not is_bounded or contribution.base_round > entry.round:
                raise WireError("out_of_range", f"entry {entry.round}: claim of {contribution.peer} is over the caps")
            if last_phases.get(contribution.peer, -1) >= contribution.phase:
                raise WireError("malformed", f"entry {entry.round} counts {contribution.peer} twice")
            last_phases[contribution.peer] = contribution.phase
        parent = entry_hash(entry)
        _check_votes(signed, parent, keys)


def _check_votes(signed: SignedEntry, digest: Digest, keys: VoteKeys) -> None:
    contributors = {contribution.peer for contribution in signed.entry.contributions}
    text = vote_text(signed.entry.run_id, digest)  # type: ignore[arg-type]
    for vote in signed.votes:
        if vote.peer not in contributors or not keys.verify(vote, text):
            raise WireError("bad_signature", f"entry {signed.entry.round}: vote of {vote.peer} is not valid")


def is_better(branch: Branch, own: list[Entry]) -> bool:
    """Fork choice: more tokens since the fork; on a tie the smaller hash of the first entry (internals 3.10)."""
    if not branch.entries:
        return False
    if not own:
        return True
    theirs, ours = branch.tokens, sum(entry_tokens(entry) for entry in own)
    if theirs != ours:
        return theirs > ours
    return entry_hash(branch.entries[0].entry) < entry_hash(own[0])


def check_payload(fd: int, lengths: tuple[int, ...], entry: Entry) -> None:
    """Raises WireError unless the payload in `fd` has the hashes that the entry names. Blocks: call it in a thread."""
    if len(lengths) != len(entry.result_hashes):
        raise WireError("malformed", f"entry {entry.round} names {len(entry.result_hashes)} result segments")
    offset = 0
    for index, (length, expected) in enumerate(zip(lengths, entry.result_hashes, strict=True)):
        if hashlib.sha256(os.pread(fd, length, offset)).digest() != expected:
            raise WireError("bad_hash", f"segment {index} of payload {entry.round} is not what was voted for")
        offset += length
