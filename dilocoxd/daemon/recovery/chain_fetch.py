"""Fetches entries and payloads of a peer's chain. Entries are believed only after `check_branch`; payloads are bound by
the entries' hashes. Which to ask for is decided by the recovery machine.
"""

import asyncio
import hashlib
import os
from typing import Final

from dilocoxd.daemon.peers.serving import CHAIN_BYTES_MAX, parse_chain
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.swarm.streams.fetch import FetchClient, OnBytes
from dilocoxd.wire.entry import ENTRY_BYTES_MAX, Entry, SignedEntry

BYTES_MAX: Final = CHAIN_BYTES_MAX + ENTRY_BYTES_MAX + 4


async def fetch_entries(client: FetchClient, peer: PeerId, first: int, on_bytes: OnBytes) -> tuple[SignedEntry, ...]:
    """The peer's entries from `first` on, as many as fit into one answer. Raises PeerError, WireError."""
    data = await client.fetch_bytes(peer, f"chain/{first}", bytes_max=BYTES_MAX, on_bytes=on_bytes)
    return tuple(await asyncio.to_thread(parse_chain, data, first))


def check_payload(fd: int, lengths: tuple[int, ...], entry: Entry) -> None:
    """Raises WireError unless the payload in `fd` has the hashes that the entry names. Blocks: call it in a thread."""
    if len(lengths) != len(entry.result_hashes):
        raise WireError("malformed", f"entry {entry.round} names {len(entry.result_hashes)} result segments")
    offset = 0
    for index, (length, expected) in enumerate(zip(lengths, entry.result_hashes, strict=True)):
        if hashlib.sha256(os.pread(fd, length, offset)).digest() != expected:
            raise WireError("bad_hash", f"segment {index} of payload {entry.round} is not what was voted for")
        offset += length
