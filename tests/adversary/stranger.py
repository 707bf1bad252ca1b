"""Somebody who is no site: a p2pd of its own, an identity, and any bytes it likes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dilocoxd.ids import PeerId, RunId
from dilocoxd.swarm.discovery.hello import introduce
from dilocoxd.swarm.discovery.identity import Identity, create
from dilocoxd.swarm.discovery.records import sign_record
from dilocoxd.swarm.p2pd.node import Node
from dilocoxd.swarm.p2pd.settings import NodeSettings
from dilocoxd.swarm.streams.fetch import FetchClient
from dilocoxd.swarm.streams.guard import PeerGuard
from dilocoxd.swarm.streams.messages import MessageChannel
from dilocoxd.swarm.streams.streams import StreamGate, unix_ms
from dilocoxd.wire.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR
from dilocoxd.wire.records import PeerRecord
from tests.harness.running.sites import SiteProcess
from tests.reference.state_digest import EMPTY_DIGEST

LISTEN = "/ip4/127.0.0.1/tcp/0"


async def _ignored(*_: Any) -> None:
    return


@dataclass
class Stranger:
    """Knows a victim's address and run id, as anybody does who was shown them once."""

    identity: Identity
    node: Node
    run_id: RunId
    sequence: int = 0

    def __post_init__(self) -> None:
        guard = PeerGuard(asyncio.get_running_loop().time)
        self.gate = StreamGate(self.node, self.run_id, guard)
        self.channel = MessageChannel(self.gate, _ignored, _ignored)
        self.fetch = FetchClient(self.gate)

    def record(self, identity: Identity | None = None, **changes: Any) -> bytes:
        """A signed record, of ourselves or of another identity whose key we have."""
        self.sequence += 1
        identity = identity or self.identity
        fields: dict[str, Any] = {
            "peer": identity.peer_id, "run_id": self.run_id, "protocol_major": PROTOCOL_MAJOR,
            "protocol_minor": PROTOCOL_MINOR, "incarnation": 1, "sequence": self.sequence, "unix_ms": unix_ms(),
            "ttl_ms": 30_000, "state": "training", "addresses": (), "chain_head": EMPTY_DIGEST, "chain_height": 0,
            "chain_weight": 0, "state_digest": EMPTY_DIGEST, "contributed_round": -1, "milli_steps_per_s": 0,
            "tokens_per_s": 0, "upload_bytes_per_s": 0,
        }  # fmt: skip
        return sign_record(identity, PeerRecord(**{**fields, **changes}))

    async def meet(self, victim: SiteProcess) -> PeerId:
        """Connect to a site's port; its peer id."""
        where, _, peer = str(victim.state()["join_address"]).partition("/p2p/")
        await self.node.connect(PeerId(peer), [where])
        return PeerId(peer)

    async def greet(self, victim: SiteProcess, **changes: Any) -> PeerId:
        """Meet, and say hello with a record of ours."""
        peer = await self.meet(victim)
        await introduce(self.gate, peer, record=self.record(**changes))
        return peer


@contextlib.asynccontextmanager
async def stranger(folder: Path, victim: SiteProcess, **settings: Any) -> AsyncIterator[Stranger]:
    """A stranger who lives as long as the block; `settings`: of its NodeSettings."""
    folder.mkdir(parents=True, exist_ok=True)
    key = create(folder / "identity.key")
    run_id = RunId(victim.state()["run_id"])
    node_settings = NodeSettings(key.path, folder / "p2p", (LISTEN,), hint_key=str(run_id), **settings)
    node = Node(node_settings, lambda data, expiration: key.peer_id, lambda code: None)
    try:
        await node.start()
        yield Stranger(key, node, run_id)
    finally:
        await node.shutdown()
