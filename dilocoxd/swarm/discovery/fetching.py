"""What a newcomer fetches from the first peer that answers: asked in a loop of its own, large files in steps."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from dilocoxd.errors import ConfigError, PeerError, WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.store.durable import store_error
from dilocoxd.swarm.discovery.asking import run_asking
from dilocoxd.swarm.discovery.bootstrap import Access, Contact, ask_peer
from dilocoxd.swarm.streams.fetch import FetchClient
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.swarm.streams.streams import StreamGate
from dilocoxd.wire.frames import PIECE_BYTES

T = TypeVar("T")

STEP_BYTES: Final = 16 * PIECE_BYTES
"""What is asked for at a time, and what a download that broke may lose."""


@dataclass(frozen=True, slots=True)
class AskedPeer:
    """A peer that is asked for one thing after the other."""

    client: FetchClient
    peer: PeerId
    tell: Callable[[str], None]
    """Gets one line per step of a large file."""


def fetch(access: Access, run_id: RunId, what: str, instead: str, question: Callable[[AskedPeer], Awaitable[T]]) -> T:
    """What `question` gets. Blocks; runs its own event loop.

    `what` is fetched, `instead`: how to do without. Raises ConfigError if no peer gives it or what comes is wrong,
    JoinError, StoreError.
    """

    async def ask(gate: StreamGate, contact: Contact) -> T:
        return await question(AskedPeer(FetchClient(gate), contact.peer, access.tell))

    try:
        return run_asking(ask_peer(access, ask, run_id=run_id))
    except (PeerError, WireError) as error:
        raise ConfigError(f"{what} cannot be fetched ({error}): {instead}, or join through another peer") from error


async def fetch_file(
    source: AskedPeer, resource: str, path: Path, size: int, what: str, is_right: Callable[[Path], bool]
) -> None:
    """`size` bytes of a resource into `path`, durably; goes on behind whole steps that are there already.

    `is_right` judges the whole file, in a thread; a wrong one is removed. Raises PeerError, WireError, StoreError.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            done = min(size, os.fstat(fd).st_size // STEP_BYTES * STEP_BYTES)
            os.ftruncate(fd, done)
            while done < size:
                region = Region(fd, done, min(STEP_BYTES, size - done), is_on_disk=True)
                await source.client.fetch_region(source.peer, resource, region, offset=done)
                done += region.length
                source.tell(f"fetched {done:,} of {size:,} bytes of {what}")
            os.fsync(fd)
        finally:
            os.close(fd)
        is_kept = await asyncio.to_thread(_keeps, path, is_right)
    except OSError as error:
        raise store_error(f"fetching the {what}", path, error) from error
    if not is_kept:
        raise WireError("bad_hash", f"{source.peer} sent another {what} than the run's")


def _keeps(path: Path, is_right: Callable[[Path], bool]) -> bool:
    if is_right(path):
        return True
    path.unlink()
    return False
