"""Members of a swarm: the whole Swarm service with a listener that only remembers."""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dilocoxd.config.manifest import Manifest, manifest_from_tables
from dilocoxd.config.presets import preset_tables
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId, RunId
from dilocoxd.machines.membership.hosts import HostsHeard
from dilocoxd.swarm.discovery import identity
from dilocoxd.swarm.interface import SelfDescription, SwarmSettings
from dilocoxd.swarm.service import Swarm
from dilocoxd.swarm.streams.fetch import Served
from dilocoxd.swarm.streams.pieces import Region
from dilocoxd.telemetry.catalogue import Event
from dilocoxd.wire.messages import SegmentHeader
from dilocoxd.wire.records import PeerRecord
from tests.integration.swarm.sites import until
from tests.reference.state_digest import EMPTY_DIGEST


def a_manifest(name: str = "swarmtest") -> Manifest:
    tables = preset_tables("tiny")
    tables["run"] = {**tables.get("run", {}), "name": name}
    return manifest_from_tables(tables, source="test").created_now()


class Member:
    """One daemon's network part, in this process."""

    def __init__(self, folder: Path, manifest: Manifest, **changes: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.manifest = manifest
        self.state = "training"
        self.records: list[tuple[PeerRecord, bool]] = []
        self.contacts: list[PeerId] = []
        self.evicted: list[PeerId] = []
        self.gone: list[PeerId] = []
        self.silent: list[PeerId] = []
        self.moved: frozenset[PeerId] = frozenset()
        self.messages: list[tuple[PeerId, Any]] = []
        self.events: list[Event] = []
        self.is_stopped = asyncio.Event()
        key = identity.load_or_create(folder / "identity.key")
        settings = SwarmSettings(
            RunId(manifest.run_id), key, folder / "peers.json", folder / "sockets", listen=("/ip4/127.0.0.1/tcp/0",)
        )
        self.swarm = Swarm(dataclasses.replace(settings, **changes), self, self.events.append)

    @property
    def peer_id(self) -> PeerId:
        return self.swarm.peer_id

    def describe(self) -> SelfDescription:
        return SelfDescription(self.state, EMPTY_DIGEST, 0, 0, EMPTY_DIGEST)

    def on_record(self, record: PeerRecord, is_own_word: bool) -> None:
        self.records.append((record, is_own_word))

    def on_contact(self, peer: PeerId) -> None:
        self.contacts.append(peer)

    def on_evicted(self, peer: PeerId) -> None:
        self.evicted.append(peer)

    def on_gone(self, peer: PeerId) -> None:
        self.gone.append(peer)

    def on_hosts(self, heard: HostsHeard) -> None:
        self.silent += heard.silent

    def on_moved(self, peers: frozenset[PeerId]) -> None:
        self.moved |= peers

    async def on_message(self, peer: PeerId, message: Any) -> None:
        self.messages.append((peer, message))

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        raise WireError("not_wanted", "nothing is expected")

    async def on_segment(self, peer: PeerId, header: SegmentHeader) -> None:
        raise AssertionError("nothing was accepted")

    async def open_resource(self, peer: PeerId, name: str) -> Served:
        if name not in ("manifest", "authorities"):
            raise WireError("not_found", name)
        is_manifest = name == "manifest"
        data = self.manifest.canonical_bytes() if is_manifest else self.swarm.decisions.known_authorities()
        fd = os.memfd_create("manifest")
        os.pwrite(fd, data, 0)
        return Served(Region(fd, 0, len(data)), hashlib.sha256(data).digest(), lambda: os.close(fd))

    def knows(self, *others: "Member") -> bool:
        return all(
            other.peer_id in self.swarm.contacts.in_touch and self.swarm.book.get(other.peer_id) is not None
            for other in others
            if other is not self
        )

    def state_of(self, other: "Member") -> str:
        record = self.swarm.book.get(other.peer_id)
        return record.state if record else ""


@contextlib.asynccontextmanager
async def running(*members: Member) -> AsyncIterator[None]:
    """Start these members, stop them (with goodbye) at the end."""
    async with asyncio.TaskGroup() as group:
        for member in members:
            await member.swarm.start()
            group.create_task(member.swarm.run(member.is_stopped))
        try:
            yield
        finally:
            for member in members:
                member.is_stopped.set()


async def until_all_know_all(*members: Member) -> None:
    await until(lambda: all(member.knows(*members) for member in members), "everybody is in touch with everybody")
