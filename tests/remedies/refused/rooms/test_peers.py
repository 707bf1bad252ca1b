"""What goes wrong with the peer that a newcomer asks: another one is asked, or it is done without, as it is said."""

import asyncio
import ctypes
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dilocoxd.cli.joining.newcomer import read_target
from dilocoxd.config.manifest import Manifest
from dilocoxd.ids import PeerId
from dilocoxd.store.prepared import TOKENS
from dilocoxd.swarm.discovery.bootstrap import Access, find_manifest
from dilocoxd.swarm.discovery.corpus import fetch_corpus
from dilocoxd.swarm.discovery.lan import look
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.swarm.streams.pieces import Region
from tests.integration.swarm.members import Member, a_manifest, running
from tests.remedies.refused.rooms.told import stored, told
from tests.unit.trainer.test_data import prepared_from

pytestmark = pytest.mark.processes
CLONE_NEWNET = 0x40000000


class Sender(Member):
    """Has the run's text, too."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.text: dict[str, bytes] = {}

    async def open_resource(self, peer: PeerId, name: str) -> Served:
        """See Member."""
        if name not in self.text:
            return await super().open_resource(peer, name)
        data, fd = self.text[name], os.memfd_create("text")
        os.pwrite(fd, data, 0)
        return Served(Region(fd, 0, len(data)), hashlib.sha256(data).digest(), lambda: os.close(fd))


def access(*addresses: str) -> Access:
    return Access(addresses, 60, lambda line: None)


def text_of(folder: Path) -> tuple[Manifest, dict[str, bytes]]:
    """A run with a text, and what its sites send of it."""
    (folder / "text.txt").write_text("".join(f"Line {n} of a text.\n" for n in range(400)))
    made = prepared_from(folder / "text.txt", folder / "cache")
    manifest = a_manifest()
    data = manifest.data.model_copy(update={"sha256": made.data_sha256})
    files = {"index.json": "index.json", "tokenizer.json": "tokenizer.json", "tokens.bin": TOKENS}
    sent = {f"corpus/{name}": (made.directory / file).read_bytes() for name, file in files.items()}
    return manifest.model_copy(update={"data": data}), sent


async def test_peers_that_do_not_give_what_they_have(tmp_path: Path) -> None:
    manifest, sent = text_of(tmp_path)
    odd, good = Sender(tmp_path / "odd", manifest), Sender(tmp_path / "good", manifest)
    async with running(odd), running(good):
        odds, goods = odd.swarm.join_address(), good.swarm.join_address()
        odd.manifest = a_manifest("somethingelse")
        with told("swarm/discovery/bootstrap.py", "but it says that it is in VALUE; ask another peer"):
            await find_manifest(access(odds))
        assert await find_manifest(access(goods)) == manifest
        with told(
            "swarm/discovery/bootstrap.py", "check how it is written, or give the site's IP address in its place"
        ):
            await find_manifest(access("no-such-host.invalid:4001"))
        assert await find_manifest(access(f"127.0.0.1:{goods.split('/')[4]}")) == manifest

        def fetch(address: str, most: int = 1 << 20) -> None:
            fetch_corpus(access(address), manifest, tmp_path / "here", bytes_max=most)

        good.text = sent
        with told("swarm/discovery/fetching.py", "or join through another peer"):
            await asyncio.to_thread(fetch, odds)
        (tmp_path / "here" / TOKENS).mkdir(parents=True)
        with stored("store/durable.py", "check the disk and its permissions", "swarm/discovery/fetching.py"):
            await asyncio.to_thread(fetch, goods)
        (tmp_path / "here" / TOKENS).rmdir()
        with told("swarm/discovery/corpus.py", "raise it with --set, or give the text with --data VALUE=PATH"):
            await asyncio.to_thread(fetch, goods, 100)
        await asyncio.to_thread(fetch, goods, 1 << 20)
        assert (tmp_path / "here" / TOKENS).read_bytes() == sent["corpus/tokens.bin"]


def test_a_machine_that_cannot_ask_on_its_network() -> None:
    """Without any network, as in an empty namespace: only the thread has none. A link needs no asking."""

    def drop() -> None:
        assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) == 0

    with ThreadPoolExecutor(1, initializer=drop) as alone:
        with told("swarm/discovery/lan.py", "give a link to `dilocoxd join`"):
            alone.submit(look, 0.0).result()
        assert alone.submit(read_target, ("127.0.0.1:4001",)).result()
