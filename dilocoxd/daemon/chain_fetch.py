"""Fetches the part of a peer's chain that we lack, and proves it: hashes, votes, caps, no contribution twice.

The answer to `chain/<from>` is believed only after `check_branch`; payloads are bound by the entries' hashes.
"""

import asyncio
import hashlib
import itertools
import os
from typing import Final

from dilocoxd.daemon.library import CHAIN_BYTES_MAX, parse_chain
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.rounds.recovery import Branch
from dilocoxd.store.log import EntryLog
from dilocoxd.swarm.fetch import FetchClient
from dilocoxd.wire.entry import ENTRY_BYTES_MAX, Entry, SignedEntry, entry_hash

BRANCH_ENTRIES_MAX: Final = 1 << 20
FIRST_STEP_BACK: Final = 16
BYTES_MAX: Final = CHAIN_BYTES_MAX + ENTRY_BYTES_MAX + 4


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


def check_payload(fd: int, lengths: tuple[int, ...], entry: Entry) -> None:
    """Raises WireError unless the payload in `fd` has the hashes that the entry names. Blocks: call it in a thread."""
    if len(lengths) != len(entry.result_hashes):
        raise WireError("malformed", f"entry {entry.round} names {len(entry.result_hashes)} result segments")
    offset = 0
    for index, (length, expected) in enumerate(zip(lengths, entry.result_hashes, strict=True)):
        if hashlib.sha256(os.pread(fd, length, offset)).digest() != expected:
            raise WireError("bad_hash", f"segment {index} of payload {entry.round} is not what was voted for")
        offset += length
