"""What this peer serves to others by name (wire.messages.Fetch.resource): manifest, chain, payloads, snapshots, text.

Decides names, caps and form; bytes are streamed from descriptors. `chain/<from>` is the concatenation of signed
entries, each with a 4-byte little-endian length in front, cut at CHAIN_BYTES_MAX (the asker asks again).
"""

import asyncio
import hashlib
import os
import re
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dilocoxd.config.origin import TOKENIZER_FILES
from dilocoxd.daemon.audit.kept_shares import KeptShares
from dilocoxd.daemon.audit.shelf import ProofShelf
from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import Digest, PeerId
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import list_rounds
from dilocoxd.swarm.streams.budget import Budget, Rate
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.entry import ENTRY_BYTES_MAX, SignedEntry, decode_entry, encode_entry
from dilocoxd.wire.records import encode_phase_losses

CHAIN_BYTES_MAX: Final = 8 << 20
CHAIN_ENTRIES_MAX: Final = 1024
HASHES_KEPT: Final = 256
LOG_EACH: Final = Rate(per_s=8.0, burst=64.0)
"""Of answers that are read and put together anew for whoever asks: of the log, snapshots, authorities, losses."""
LOG_NETWORK: Final = Rate(per_s=16.0, burst=128.0)
LOG_TOTAL: Final = Rate(per_s=32.0, burst=256.0)
SHARE_EACH: Final = Rate(per_s=64.0, burst=512.0)
"""Of `shares/<phase>` and `share/<phase>/<segment>`: a member asks once each for every segment that it checks."""
SHARE_NETWORK: Final = Rate(per_s=256.0, burst=2048.0)
SHARE_TOTAL: Final = Rate(per_s=1024.0, burst=8192.0)
HASH_BYTES: Final = 64 << 20
"""One unit of HASH_*: what is hashed in about a tenth of a second."""
HASH_UNITS_MAX: Final = 16.0
"""Of one resource: a file is hashed once, and remembered."""
HASH_EACH: Final = Rate(per_s=2.0, burst=64.0)
HASH_NETWORK: Final = Rate(per_s=4.0, burst=128.0)
HASH_TOTAL: Final = Rate(per_s=8.0, burst=256.0)
BUDGET_POLL_S: Final = 0.25
BUDGET_WAIT_S: Final = 5.0
"""So long a question beyond the budget waits before it is refused."""
_RESOURCE: Final = re.compile(
    r"(?P<kind>manifest|authorities|snapshots|chain/(?P<first>\d{1,18})|payload/(?P<round>\d{1,18})"
    r"|losses/(?P<losses>\d{1,19})|shares/(?P<shares>\d{1,19})|share/(?P<phase>\d{1,19})/(?P<segment>\d{1,5})"
    r"|snapshot/(?P<snapshot>\d{1,18})/(?P<file>[a-z]{1,32}\.(?:json|safetensors))"
    r"|corpus/(?P<corpus>index\.json|tokenizer\.json|tokens\.bin)"
    r"|proof/(?P<entry>[0-9a-f]{64})/(?P<of>\d{1,5})(?:/(?P<place>\d{1,4}))?"
    rf"|tokenizer/(?P<tokenizer>{'|'.join(map(re.escape, TOKENIZER_FILES))}))",
    re.ASCII,
)
EMPTY: Final = ProofShelf()
NO_LOSSES: Final = encode_phase_losses({}, 0)
_LENGTH: Final = struct.Struct("<I")


def parse_chain(data: bytes, first: int) -> list[SignedEntry]:
    """Entries in a `chain/<first>` answer, numbered without gap. Raises WireError; signatures are not checked here."""
    entries: list[SignedEntry] = []
    position = 0
    while position < len(data):
        if position + _LENGTH.size > len(data):
            raise WireError("truncated", "chain ends inside a length")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length > ENTRY_BYTES_MAX or position + length > len(data):
            raise WireError("truncated", f"chain entry of {length} bytes does not fit")
        signed = decode_entry(data[position : position + length])
        position += length
        if signed.entry.round != first + len(entries):
            raise WireError("malformed", f"chain has entry {signed.entry.round} in place {first + len(entries)}")
        entries.append(signed)
    return entries


def write_chain(log: EntryLog, first: int) -> bytes:
    """The answer to `chain/<first>`: as many entries as fit. Raises StoreError."""
    parts: list[bytes] = []
    size = 0
    for signed in log.entries(first, first + CHAIN_ENTRIES_MAX):
        data = encode_entry(signed)
        if parts and size + len(data) > CHAIN_BYTES_MAX:
            break
        parts.append(_LENGTH.pack(len(data)) + data)
        size += len(data)
    return b"".join(parts)


class Library:
    """Opens resources for swarm.fetch.FetchServer."""

    def __init__(
        self,
        manifest: bytes,
        log: EntryLog,
        snapshots: Path,
        find_corpus: Callable[[], Path | None] = lambda: None,
        shares: KeptShares | None = None,
        proofs: ProofShelf = EMPTY,
    ) -> None:
        """`find_corpus`: folder of the run's prepared text, if it is here. `shares`: None in runs without audits."""
        self._shares = shares
        self._proofs = proofs
        self._find_corpus = find_corpus
        self._manifest = manifest
        self._log = log
        self._snapshots = snapshots
        self._hashes: OrderedDict[tuple[str, int, int, int], bytes] = OrderedDict()
        self._log_reads = Budget(time.monotonic, each=LOG_EACH, network=LOG_NETWORK, total=LOG_TOTAL)
        self._share_reads = Budget(time.monotonic, each=SHARE_EACH, network=SHARE_NETWORK, total=SHARE_TOTAL)
        self._hash_work = Budget(time.monotonic, each=HASH_EACH, network=HASH_NETWORK, total=HASH_TOTAL)
        self.network: Callable[[PeerId], str] = lambda peer: ""
        """The network that a peer talks from."""
        self.authorities: Callable[[], bytes] = lambda: b""
        """The changes of the run's authorities that we know, packed."""
        self.losses: Callable[[int], bytes] = lambda first: NO_LOSSES
        """Of our own phases from `first` on."""
        self._hashing = asyncio.Lock()
        """A newcomer asks for several parts of a file at once: only the first question hashes all of it."""

    async def open(self, peer: PeerId, resource: str) -> Served:
        """The resource by name. Raises WireError(not_found, busy), StoreError.

        What it costs to find it is charged to the asker, to its network and to all."""
        match = _RESOURCE.fullmatch(resource)
        if match is None:
            raise WireError("not_found", f"there is no resource {resource[:80]!r}")
        try:
            if resource == "manifest":
                return serve_bytes(self._manifest)
            if resource in ("snapshots", "authorities") or match["first"] or match["losses"]:
                await self._charge(self._log_reads, peer, 1.0)
            if match["losses"] is not None:
                return serve_bytes(self.losses(int(match["losses"])))
            if resource == "authorities":
                return serve_bytes(self.authorities())
            if resource == "snapshots":
                return serve_bytes(await asyncio.to_thread(self._list_snapshots))
            if match["first"] is not None:
                return serve_bytes(await asyncio.to_thread(write_chain, self._log, int(match["first"])))
            if match["round"] is not None:
                return await self._payload(peer, int(match["round"]))
            return await self._find(peer, match)
        except (StoreError, OSError) as error:
            raise WireError("not_found", f"{resource} is not here") from error  # why tells of our paths

    async def _find(self, peer: PeerId, match: re.Match[str]) -> Served:
        """What lies in files that are not the log's."""
        if match["shares"] is not None or match["phase"] is not None:
            await self._charge(self._share_reads, peer, 1.0)
            return await self._share(peer, int(match["shares"] or match["phase"]), match["segment"])
        if match["entry"] is not None:
            await self._charge(self._share_reads, peer, 1.0)
            return await self._proof(peer, Digest(bytes.fromhex(match["entry"])), int(match["of"]), match["place"])
        if match["corpus"] is not None:
            return await self._corpus(peer, match["corpus"])
        if match["tokenizer"] is not None:
            return await self._file(peer, self._snapshots.with_name("tokenizer") / match["tokenizer"])
        return await self._file(peer, self._snapshots / match["snapshot"] / match["file"])

    def _list_snapshots(self) -> bytes:
        return "\n".join(map(str, list_rounds(self._snapshots))).encode("ascii")

    async def _charge(self, budget: Budget, peer: PeerId, cost: float) -> None:
        end = time.monotonic() + BUDGET_WAIT_S
        while not budget.take(peer, cost, network=self.network(peer)):
            if time.monotonic() > end:
                raise WireError("busy", "you, your network or all have asked for more than this site looks up")
            await asyncio.sleep(BUDGET_POLL_S)

    async def _corpus(self, peer: PeerId, name: str) -> Served:
        folder = await asyncio.to_thread(self._find_corpus)
        if folder is None:
            raise WireError("not_found", "the run's text is not on this machine, or its hash is not in the manifest")
        return await self._file(peer, folder / name)

    async def _share(self, peer: PeerId, phase: int, segment: str | None) -> Served:
        """Of our own contribution of this phase: a segment's payload, or the hashes of all (`segment` None)."""
        if self._shares is None:
            raise WireError("not_found", "nobody checks reductions in this run")
        if segment is not None:
            place = await asyncio.to_thread(self._shares.place, phase, int(segment))
            return await self._served(peer, place.path, place.offset, place.length)
        unread = await asyncio.to_thread(self._shares.unread_bytes, phase)
        await self._charge(self._hash_work, peer, min(HASH_UNITS_MAX, unread / HASH_BYTES))
        return serve_bytes(await asyncio.to_thread(self._shares.hashes, phase))

    async def _proof(self, peer: PeerId, entry_hash: Digest, segment: int, place: str | None) -> Served:
        """Of a result that we found false: a share, or the proofs of all (`place` None)."""
        if place is None:
            return serve_bytes(self._proofs.proof(entry_hash, segment))
        return await self._file(peer, self._proofs.share(entry_hash, segment, int(place)))

    async def _payload(self, peer: PeerId, index: int) -> Served:
        payload = await asyncio.to_thread(self._log.payload, index)
        return await self._served(peer, Path(payload.path), payload.offset, payload.length)

    async def _file(self, peer: PeerId, path: Path) -> Served:
        size = (await asyncio.to_thread(path.stat)).st_size
        return await self._served(peer, path, 0, size)

    async def _served(self, peer: PeerId, path: Path, offset: int, length: int) -> Served:
        fd = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        region = Region(fd, offset, length, is_on_disk=True)
        try:
            changed = os.fstat(fd).st_mtime_ns
            key = (str(path), offset, length, changed)
            if key not in self._hashes:
                await self._charge(self._hash_work, peer, min(HASH_UNITS_MAX, length / HASH_BYTES))
                await self._hash(key, region)
        except (OSError, StoreError, WireError, asyncio.CancelledError):
            os.close(fd)
            raise
        return Served(region, self._hashes[key], lambda: os.close(fd))

    async def _hash(self, key: tuple[str, int, int, int], region: Region) -> None:
        async with self._hashing:
            if key in self._hashes:
                return
            digest = await region.sha256()
            while len(self._hashes) >= HASHES_KEPT:
                self._hashes.popitem(last=False)
            self._hashes[key] = digest


def serve_bytes(data: bytes) -> Served:
    """A small resource from memory."""
    fd = os.memfd_create("served", os.MFD_CLOEXEC)
    try:
        os.pwrite(fd, data, 0)
    except OSError:
        os.close(fd)
        raise
    return Served(Region(fd, 0, len(data)), hashlib.sha256(data).digest(), lambda: os.close(fd))
