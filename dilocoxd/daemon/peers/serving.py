"""What this peer serves to others by name: manifest, chain, payloads, snapshots (wire.messages.Fetch.resource).

Decides names, caps and form; bytes are streamed from descriptors. `chain/<from>` is the concatenation of signed
entries, each with a 4-byte little-endian length in front, cut at CHAIN_BYTES_MAX (the asker asks again).
"""

import asyncio
import hashlib
import os
import re
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Final

from dilocoxd.errors import StoreError, WireError
from dilocoxd.ids import PeerId
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import list_rounds
from dilocoxd.swarm.fetch import Served
from dilocoxd.swarm.pieces import Region
from dilocoxd.wire.entry import ENTRY_BYTES_MAX, SignedEntry, decode_entry, encode_entry

CHAIN_BYTES_MAX: Final = 8 << 20
CHAIN_ENTRIES_MAX: Final = 1024
HASHES_KEPT: Final = 256
_RESOURCE: Final = re.compile(
    r"(?P<kind>manifest|snapshots|chain/(?P<first>\d{1,18})|payload/(?P<round>\d{1,18})"
    r"|snapshot/(?P<snapshot>\d{1,18})/(?P<file>[a-z]{1,32}\.(?:json|safetensors)))"
)
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

    def __init__(self, manifest: bytes, log: EntryLog, snapshots: Path) -> None:
        self._manifest = manifest
        self._log = log
        self._snapshots = snapshots
        self._hashes: OrderedDict[tuple[str, int, int, int], bytes] = OrderedDict()
        self._hashing = asyncio.Lock()
        """A newcomer asks for several parts of a file at once: only the first question hashes all of it."""

    async def open(self, peer: PeerId, resource: str) -> Served:
        """The resource by name. Raises WireError(not_found), StoreError."""
        match = _RESOURCE.fullmatch(resource)
        if match is None:
            raise WireError("not_found", f"there is no resource {resource[:80]!r}")
        try:
            if resource == "manifest":
                return serve_bytes(self._manifest)
            if resource == "snapshots":
                return serve_bytes(await asyncio.to_thread(self._list_snapshots))
            if match["first"] is not None:
                return serve_bytes(await asyncio.to_thread(write_chain, self._log, int(match["first"])))
            if match["round"] is not None:
                return await self._payload(int(match["round"]))
            return await self._file(self._snapshots / match["snapshot"] / match["file"])
        except (StoreError, OSError) as error:
            raise WireError("not_found", f"{resource}: {error}") from error

    def _list_snapshots(self) -> bytes:
        return "\n".join(map(str, list_rounds(self._snapshots))).encode("ascii")

    async def _payload(self, index: int) -> Served:
        payload = await asyncio.to_thread(self._log.payload, index)
        return await self._served(Path(payload.path), payload.offset, payload.length)

    async def _file(self, path: Path) -> Served:
        size = (await asyncio.to_thread(path.stat)).st_size
        return await self._served(path, 0, size)

    async def _served(self, path: Path, offset: int, length: int) -> Served:
        fd = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
        region = Region(fd, offset, length, is_on_disk=True)
        try:
            changed = os.fstat(fd).st_mtime_ns
            key = (str(path), offset, length, changed)
            if key not in self._hashes:
                await self._hash(key, region)
        except (OSError, StoreError, asyncio.CancelledError):
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
