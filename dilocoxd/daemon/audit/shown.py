"""Fetches the shares of one segment from a site that shows its result false (rule X14), as long as they come.

A fixed time would silence who has a slow uplink and is asked by everybody at once; none would let who trickles keep a
look open for ever. So every piece that comes buys time, at the least speed of a frame (S3).
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.audits import share_name
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.swarm.streams.ends import FRAME_BYTES_PER_S_MIN
from dilocoxd.swarm.streams.fetch import FetchClient
from dilocoxd.swarm.streams.pace import AnswerPace
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.audit import ShareProof, decode_sum_proof, sum_proof_bytes_max
from dilocoxd.wire.entry import Entry, entry_hash
from dilocoxd.wire.merkle import is_under

START_S: Final = 15.0
"""So long there may be nothing; who was fast before has no more than that ahead."""
SHARE_S: Final = 2.0
"""What each share takes beside its bytes: a stream of its own."""


class ShownShares:
    """Of one segment of one entry of our chain."""

    def __init__(self, client: FetchClient, teller: PeerId, entry: Entry, segment: int, lengths: Sequence[int]) -> None:
        """`lengths`: bytes of a share, by segment."""
        self.pace = AnswerPace(START_S, FRAME_BYTES_PER_S_MIN)
        self._client = client
        self._teller = teller
        self._entry = entry
        self._segment = segment
        self._lengths = lengths

    async def fetch(self, folder: Path) -> tuple[ShareProof, ...]:
        """All shares, one after the other, as files of the folder. Raises PeerError and TimeoutError if the teller
        shows nothing, or too slowly; WireError if it shows something else."""
        entry, number = self._entry, len(self._entry.contributions)
        resource = f"proof/{entry_hash(entry).hex()}/{self._segment}"
        async with self.pace.begin():
            limit = sum_proof_bytes_max(number)
            data = await self._client.fetch_bytes(self._teller, resource, bytes_max=limit)
            self.pace.came(len(data))
            shares = decode_sum_proof(data, number).shares
            for named, share in zip(entry.contributions, shares, strict=True):
                if not is_under(named.payload_root, share.sha256, self._segment, len(self._lengths), share.proof):
                    raise WireError("bad_root", f"the share of {named.peer} is not under its root")
            for place, (named, share) in enumerate(zip(entry.contributions, shares, strict=True)):
                path = folder / share_name(place)
                await self._fetch_file(f"{resource}/{place}", path)
                if await asyncio.to_thread(file_sha256, path) != share.sha256:
                    raise WireError("bad_hash", f"the share of {named.peer} is another one than was announced")
                self.pace.allow(SHARE_S)
        return shares

    async def _fetch_file(self, resource: str, path: Path) -> None:
        fd = await asyncio.to_thread(os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            target = Region(fd, 0, self._lengths[self._segment], is_on_disk=True)
            await self._client.fetch_region(self._teller, resource, target, on_bytes=self.pace.came)
        finally:
            os.close(fd)
