"""Brings together what one segment's audit needs, as files of one folder: shares, chain, earlier results.

Our own share comes from our kept work, those of others from their kept work, results from our log. Nothing is read from
the shared buffers: they may hold another attempt, or another round, by the time it is read.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dilocoxd.daemon.audit.kept_shares import KeptShares
from dilocoxd.daemon.audit.shown import ShownShares
from dilocoxd.daemon.chain.ledger import Ledger
from dilocoxd.errors import PeerError, StoreError, WireError, reason_of
from dilocoxd.ids import PeerId
from dilocoxd.store.audits import BEFORE_NAME, AuditFolders, share_name, write_case
from dilocoxd.store.file_hash import file_sha256
from dilocoxd.swarm.streams.fetch import FetchClient
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.wire.audit import AuditCase, ShareProof
from dilocoxd.wire.clip_record import NORMS_KEPT, NUMBER_BYTES
from dilocoxd.wire.entry import Contribution, Entry, Signature, SignedVote, missing_contributors
from dilocoxd.wire.merkle import MerkleTree

T = TypeVar("T")

HASH_BYTES: Final = 32
RETRY_S: Final = 0.5
"""A site that has not kept its work for this entry yet has it a moment later."""


@dataclass(frozen=True, slots=True)
class AuditedEntry:
    """An entry under audit: formed, and perhaps committed. `owners`: by segment; empty if nobody remembers. `votes`:
    those for it in our log."""

    entry: Entry
    offers: tuple[Signature, ...]
    owners: tuple[PeerId, ...]
    votes: tuple[SignedVote, ...] = ()

    def voted(self, peer: str) -> bool:
        """Whether our log has its vote."""
        return any(vote.peer == peer for vote in self.votes)

    def owner(self, segment: int) -> str:
        """Who reduced it; empty if nobody remembers."""
        return self.owners[segment] if self.owners else ""


class Unanswered(Exception):
    """These sites did not give what they offered."""

    def __init__(self, peers: tuple[PeerId, ...]) -> None:
        super().__init__(f"no answer of {', '.join(peers)}")
        self.peers = peers


@dataclass(frozen=True, slots=True)
class AuditSources:
    """Where the bytes are."""

    me: PeerId
    ledger: Ledger
    client: FetchClient
    kept: KeptShares
    folders: AuditFolders
    participation_rounds: int


class RoundInputs:
    """The inputs of one entry; remembers what all its segments share."""

    def __init__(self, sources: AuditSources, audited: AuditedEntry, until: float) -> None:
        """`until`: loop time after which no contributor is waited for; who shows what others offered has its own."""
        self._from = sources
        self.audited = audited
        self._until = until
        self._trees: dict[PeerId, tuple[MerkleTree, bytes]] = {}
        self.bytes_received = 0
        self._lengths = sources.ledger.payloads.at(audited.entry.lowrank_r).payload_bytes[0]

    @property
    def num_segments(self) -> int:
        return len(self._lengths)

    async def collect(self, segment: int, teller: PeerId | None = None) -> tuple[Path, AuditCase]:
        """A folder with all that is needed. `teller`: who shows the shares of all contributors (X14); None: each shows
        its own. Raises Unanswered, StoreError, and WireError if the teller shows anything else (then the folder is
        gone)."""
        entry, folders = self.audited.entry, self._from.folders
        folder = await asyncio.to_thread(folders.begin, int(entry.round), segment)
        is_whole = False
        try:
            # First what our own disk has: nobody sends megabytes for what it lacks.
            missing = await asyncio.to_thread(self._missing)
            recent = await asyncio.to_thread(self._recent, segment)
            await asyncio.to_thread(self._write_before, segment, folder)
            self._check_below()
            proofs = await (
                self._shares(entry, segment, folder) if teller is None else self._shown(teller, segment, folder)
            )
            case = AuditCase(
                entry=entry,
                offers=self.audited.offers,
                segment=segment,
                owner=self.audited.owner(segment),
                missing=missing,
                recent=recent,
                proofs=tuple(proofs),
            )
            await asyncio.to_thread(write_case, folder, case)
            is_whole = True
        finally:
            if not is_whole:
                folders.forget(folder)
        return folder, case

    # --- shares

    async def _shares(self, entry: Entry, segment: int, folder: Path) -> list[ShareProof]:
        """All at once: each comes from another site. One that fails does not stop the others."""
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(self._answer(named, segment, folder / share_name(place)))
                for place, named in enumerate(entry.contributions)
            ]
        found = [task.result() for task in asked]
        for share in found:
            if isinstance(share, StoreError):
                raise share
        silent = [named.peer for named, share in zip(entry.contributions, found, strict=True) if share is None]
        if silent:
            raise Unanswered(tuple(silent))
        return [share for share in found if isinstance(share, ShareProof)]

    async def _shown(self, teller: PeerId, segment: int, folder: Path) -> tuple[ShareProof, ...]:
        """Raises Unanswered, WireError."""
        shown = ShownShares(self._from.client, teller, self.audited.entry, segment, self._lengths)
        try:
            return await shown.fetch(folder)
        except (PeerError, TimeoutError) as error:
            raise Unanswered((teller,)) from error
        finally:
            self.bytes_received += shown.pace.bytes_received

    async def _answer(self, named: Contribution, segment: int, path: Path) -> ShareProof | StoreError | None:
        """None: this other site did not give it. StoreError: a fault of our own."""
        try:
            return await self._share(named, segment, path)
        except (PeerError, WireError, TimeoutError):
            return None
        except (StoreError, OSError) as error:
            return StoreError(reason_of(error))

    async def _share(self, named: Contribution, segment: int, path: Path) -> ShareProof:
        is_own = named.peer == self._from.me
        async with asyncio.timeout_at(None if is_own else self._until):
            tree, hashes = await (self._own_tree(named) if is_own else self._tree(named))
            expected = hashes[HASH_BYTES * segment : HASH_BYTES * (segment + 1)]
            if is_own:
                await asyncio.to_thread(self._copy_own, named, segment, path)
            else:
                await self._fetch(named, segment, path)
        if await asyncio.to_thread(file_sha256, path) != expected:
            why = f"segment {segment} of phase {named.phase} is not what was offered"
            raise StoreError(why) if is_own else WireError("bad_hash", why)
        return ShareProof(expected, tree.proof(segment))

    async def _own_tree(self, named: Contribution) -> tuple[MerkleTree, bytes]:
        if named.peer not in self._trees:
            try:
                hashes = await asyncio.to_thread(self._from.kept.hashes, named.phase)
            except OSError as error:
                raise StoreError(f"our work of phase {named.phase} is not kept ({reason_of(error)})") from error
            tree = self._checked(named, hashes)
            if tree is None:
                raise StoreError(f"what we keep of phase {named.phase} is not what we offered")
            self._trees[named.peer] = tree, hashes
        return self._trees[named.peer]

    async def _tree(self, named: Contribution) -> tuple[MerkleTree, bytes]:
        if named.peer not in self._trees:
            size = HASH_BYTES * self.num_segments
            resource = f"shares/{named.phase}"
            hashes = await self._patiently(lambda: self._from.client.fetch_bytes(named.peer, resource, bytes_max=size))
            self.bytes_received += len(hashes)
            tree = self._checked(named, hashes)
            if tree is None:
                raise WireError("bad_root", f"{named.peer} does not show the payload of phase {named.phase}")
            self._trees[named.peer] = tree, hashes
        return self._trees[named.peer]

    def _checked(self, named: Contribution, hashes: bytes) -> MerkleTree | None:
        """The tree over these hashes, if it has the offer's root."""
        if len(hashes) != HASH_BYTES * self.num_segments:
            return None
        tree = MerkleTree([hashes[first : first + HASH_BYTES] for first in range(0, len(hashes), HASH_BYTES)])
        return tree if tree.root == named.payload_root else None

    def _copy_own(self, named: Contribution, segment: int, path: Path) -> None:
        try:
            place = self._from.kept.place(named.phase, segment)
            with place.path.open("rb") as file:
                file.seek(place.offset)
                path.write_bytes(file.read(place.length))
        except OSError as error:
            raise StoreError(f"our share of segment {segment} cannot be copied ({reason_of(error)})") from error

    async def _fetch(self, named: Contribution, segment: int, path: Path) -> None:
        resource = f"share/{named.phase}/{segment}"
        await self._patiently(lambda: self._fetch_file(named.peer, resource, segment, path))

    async def _fetch_file(self, peer: PeerId, resource: str, segment: int, path: Path) -> None:
        length = self._lengths[segment]
        fd = await asyncio.to_thread(os.open, path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await self._from.client.fetch_region(peer, resource, Region(fd, 0, length, is_on_disk=True))
            self.bytes_received += length
        finally:
            os.close(fd)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again while there is time. Raises PeerError, WireError of the last try."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                return await ask()
            except PeerError:
                if clock() + RETRY_S >= self._until:
                    raise
            await asyncio.sleep(RETRY_S)

    # --- the chain

    def _check_below(self) -> None:
        """Raises StoreError unless our log leads to the entry: by another chain another sum would be right."""
        entry, log = self.audited.entry, self._from.ledger.log
        if log.height < entry.round or log.hash_at(entry.round) != entry.parent:
            raise StoreError(f"our chain leads to entry {entry.round} no more")

    def _missing(self) -> int:
        entry = self.audited.entry
        first = max(0, entry.round - self._from.participation_rounds)
        before = self._from.ledger.log.entries(first, entry.round)
        return missing_contributors([len(signed.entry.counted) for signed in before], len(entry.counted))

    def _recent(self, segment: int) -> bytes:
        """What the results before this entry recorded of the segment. Raises StoreError if they are dropped."""
        entry, size = self.audited.entry, self._from.ledger.payloads.record_bytes
        if len(entry.contributions) != 2 or not size:
            return b""
        rounds = range(max(0, entry.round - NORMS_KEPT), entry.round)
        log = self._from.ledger.log
        return b"".join(log.result(index, segment)[-size:][:NUMBER_BYTES] for index in rounds)

    def _write_before(self, segment: int, folder: Path) -> None:
        entry = self.audited.entry
        if self._from.ledger.payloads.center_start and entry.round:
            (folder / BEFORE_NAME).write_bytes(self._from.ledger.log.result(entry.round - 1, segment))

    def result(self, segment: int) -> bytes | None:
        """What the owner returned, from our log; None if the entry is not there."""
        entry, log = self.audited.entry, self._from.ledger.log
        if entry.round >= log.height or log.entry(entry.round).entry != entry:
            return None
        return log.result(entry.round, segment)


def files_sha256(folder: Path, number: int) -> list[bytes]:
    """Of each share's file as it lies there now. Raises StoreError."""
    try:
        return [file_sha256(folder / share_name(place)) for place in range(number)]
    except OSError as error:
        raise StoreError(f"{folder}: an audit's shares cannot be read again ({reason_of(error)})") from error
