"""One peer of the download benchmark, in its own process: `... donor|fetcher FOLDER ADDRESS MIB` (see catch_up.py).

A donor writes a snapshot of that many MiB (the same at every donor), serves it with the product's Library, and prints
its peer id. A fetcher reads lines of JSON ({"donors": [join addresses], "name": ...}) and answers each with the seconds
that the product's download of the whole snapshot took. Both end at the end of their standard input.
"""

import asyncio
import hashlib
import json
import shutil
import sys
import time
from pathlib import Path

import uvloop

from dilocoxd.daemon.peers.serving import Library
from dilocoxd.ids import PeerId, RunId
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import ANCHOR_NAME, MOMENTUM_NAME, SnapshotIndex, hash_chunks, publish, read_index
from dilocoxd.swarm.discovery.bootstrap import reach
from dilocoxd.swarm.p2pd.addresses import parse_address
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.wire.entry import genesis_hash
from tests.harness.downloading import download_snapshot
from tests.harness.running.network_namespaces import PORT
from tests.integration.swarm.members import Member, a_manifest, running

MANIFEST = a_manifest().model_copy(
    update={"run": a_manifest().run.model_copy(update={"created": "2026-01-01T00:00:00Z"})}
)
ROUND = 4


class Donor(Member):
    """Serves what a daemon serves."""

    def use(self, folder: Path) -> None:
        """The run directory to serve from."""
        run_id = RunId(self.manifest.run_id)
        log = EntryLog(folder / "log", run_id, genesis_hash(run_id, self.manifest.sha256()))
        self.library = Library(self.manifest.canonical_bytes(), log, folder / "snapshots")

    async def open_resource(self, peer: PeerId, name: str) -> Served:
        return await self.library.open(peer, name)


def write_snapshot(folder: Path, mebibytes: int) -> SnapshotIndex:
    """Two files of equal size with bytes that do not compress."""
    root = folder / "snapshots"
    temporary, directory = root / ".new", root / str(ROUND)
    temporary.mkdir(parents=True, exist_ok=True)
    for name in (ANCHOR_NAME, MOMENTUM_NAME):
        with (temporary / name).open("wb") as file:
            for number in range(mebibytes // 2):
                file.write(hashlib.shake_256(f"{name} {number}".encode()).digest(1 << 20))
    files = tuple(hash_chunks(temporary / name) for name in (ANCHOR_NAME, MOMENTUM_NAME))
    digest = hashlib.sha256(b"state").hexdigest()
    index = SnapshotIndex(MANIFEST.run_id, ROUND, digest, digest, digest, files)
    publish(temporary, directory, index)
    return read_index(directory)


async def serve(folder: Path, address: str, mebibytes: int) -> None:
    """Until the end of standard input."""
    donor = Donor(folder, MANIFEST, listen=(f"/ip4/{address}/tcp/{PORT}",))
    write_snapshot(folder, mebibytes)
    donor.use(folder)
    async with running(donor):
        print(donor.peer_id, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def fetch(folder: Path, address: str, mebibytes: int) -> None:
    """One download for each line."""
    me = Member(folder / "me", MANIFEST, listen=(f"/ip4/{address}/tcp/{PORT}",))
    index = write_snapshot(folder / "expected", mebibytes)
    async with running(me):
        print(me.peer_id, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            swarm = me.swarm
            contacts = [await reach(swarm.node, swarm.gate, parse_address(text)) for text in order["donors"]]
            peers = [contact.peer for contact in contacts]
            started = time.monotonic()
            directory = await download_snapshot(swarm.fetch_client, peers, index, folder / "got" / order["name"])
            seconds = time.monotonic() - started
            assert all(hash_chunks(directory / file.name) == file for file in index.files)
            shutil.rmtree(directory)
            print(json.dumps({"seconds": seconds, "bytes": index.total_bytes}), flush=True)


if __name__ == "__main__":
    ROLE = {"donor": serve, "fetcher": fetch}[sys.argv[1]]
    uvloop.run(ROLE(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
