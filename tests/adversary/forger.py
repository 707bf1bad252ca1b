"""A stranger that serves a chain of its own: the victim's, but for another entry at the tip, heavier, which names the
victim with a phase after which none of its own can count (TRUST C1)."""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dilocoxd.config.manifest import Manifest
from dilocoxd.daemon.peers.serving import parse_chain, serve_bytes
from dilocoxd.daemon.round.signing import offer_signer, vote_keys
from dilocoxd.errors import PeerError, WireError
from dilocoxd.ids import Attempt, Digest, PeerId, PhaseId
from dilocoxd.swarm.streams.fetch import FetchServer, Served
from dilocoxd.swarm.streams.messages import MessageChannel
from dilocoxd.swarm.streams.streams import PROTOCOL_CALL, PROTOCOL_FETCH, PROTOCOL_MESSAGE
from dilocoxd.wire.entry import SignedEntry, encode_entry, entry_hash, genesis_hash, voted_for
from dilocoxd.wire.messages import Records
from tests.adversary.stranger import Stranger, _ignored, stranger
from tests.harness.running.sites import SiteProcess
from tests.harness.synthetic.fake_site import LENGTHS, TOTAL

LAST_PHASE = PhaseId(2**63 - 1)
TOKENS = 10_000
"""What an honest entry claims a thousand times."""
PAYLOAD = bytes(TOTAL)


@dataclass
class Forger:
    """What it serves now."""

    me: Stranger
    genesis: Digest
    chain: list[SignedEntry] = field(default_factory=list)

    def forge(self, chain: list[SignedEntry]) -> None:
        """This chain with another entry in the place of the last one. Ours is the only vote; the victim's own offer
        stands beside a claim that it never made."""
        *before, tip = chain
        mine, (theirs,) = self.me.identity, tip.entry.contributions
        own = replace(theirs, peer=mine.peer_id, phase=PhaseId(tip.entry.round), tokens=TOKENS)
        offers = {theirs.peer: tip.offers[0], own.peer: offer_signer(mine, self.genesis)(own)}
        named = sorted((own, replace(theirs, phase=LAST_PHASE, tokens=TOKENS)), key=lambda one: one.peer)
        parts = (PAYLOAD[: LENGTHS[0]], PAYLOAD[LENGTHS[0] :])
        hashes = tuple(hashlib.sha256(part).digest() for part in parts)
        entry = replace(tip.entry, contributions=tuple(named), result_hashes=hashes)
        vote = vote_keys(mine, self.genesis).sign(voted_for(entry, entry_hash(entry), Attempt(0)))
        self.chain = [*before, SignedEntry(entry, tuple(offers[one.peer] for one in named), (vote,))]

    async def answer(self, peer: PeerId, message: Any) -> Records:
        """To gossip: nothing."""
        return Records((), reply=False)

    async def open(self, peer: PeerId, resource: str) -> Served:
        """`chain/N` and `payload/N` of the forged entry; nothing above it."""
        kind, _, number = resource.partition("/")
        if kind == "chain" and number.isdecimal():
            parts = map(encode_entry, self.chain[int(number) :])
            return serve_bytes(b"".join(len(part).to_bytes(4, "little") + part for part in parts))
        if resource == f"payload/{len(self.chain) - 1}":
            return serve_bytes(PAYLOAD)
        raise WireError("not_found", resource)

    async def attack(self, victim: SiteProcess, peer: PeerId) -> bool:
        """Forge at its tip, and say so; whether instead it serves an entry as its own that we forged before."""
        height = int(victim.state()["height"])
        with contextlib.suppress(PeerError):  # banned, or the tip has moved on
            chain = parse_chain(await self.me.fetch.fetch_bytes(peer, "chain/0", bytes_max=1 << 20), 0)[:height]
            if any(one.phase == LAST_PHASE for signed in chain for one in signed.entry.contributions):
                return True
            self.forge(chain)
            tip = {"chain_head": entry_hash(self.chain[-1].entry), "chain_height": height, "chain_weight": 1 << 40}
            await self.me.greet(victim, **tip)
        return False


@contextlib.asynccontextmanager
async def forger(folder: Path, victim: SiteProcess, manifest: Manifest) -> AsyncIterator[Forger]:
    """Has met nobody yet."""
    async with stranger(folder, victim) as me:
        found = Forger(me, genesis_hash(manifest.run_id, manifest.sha256()))
        channel = MessageChannel(me.gate, _ignored, found.answer)
        server = FetchServer(found.open)
        serving = {
            PROTOCOL_FETCH: server.serve, PROTOCOL_MESSAGE: channel.serve_messages,
            PROTOCOL_CALL: channel.serve_call,
        }  # fmt: skip
        for protocol, handler in serving.items():

            async def enter(peer: PeerId, reader: Any, writer: Any, handler: Any = handler) -> None:
                await me.gate.serve(handler, peer, reader, writer)

            await me.node.set_handler(protocol, enter)
        yield found
