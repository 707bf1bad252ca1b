"""Builds the parts of one daemon from its run directory and joins them; app.py starts and stops them.

Everything that one part tells another goes through a method here, so that this file shows who knows whom.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, get_args

from dilocoxd.daemon.api_view import DaemonView
from dilocoxd.daemon.ledger import Ledger, first_view
from dilocoxd.daemon.library import Library, serve_bytes
from dilocoxd.daemon.lifecycle import Lifecycle
from dilocoxd.daemon.membership_driver import MembershipDriver
from dilocoxd.daemon.opened import Opened
from dilocoxd.daemon.own_books import OwnBooks
from dilocoxd.daemon.payload_map import PayloadMaps
from dilocoxd.daemon.promises import PromiseFile
from dilocoxd.daemon.reach import RESOURCE, DialBack
from dilocoxd.daemon.recorder import Recorder
from dilocoxd.daemon.recovery_driver import RecoveryDriver, RecoveryParts
from dilocoxd.daemon.round_driver import RoundDriver, RoundParts
from dilocoxd.daemon.round_history import RoundHistory
from dilocoxd.daemon.settings import round_limits, site_settings, swarm_settings
from dilocoxd.daemon.site_history import SiteHistory
from dilocoxd.daemon.site_interface import (
    ContributionOffered,
    Site,
    SiteEvent,
    SiteLayout,
    SiteSettings,
    WorkerStatus,
)
from dilocoxd.daemon.snapshot_keeper import Retention, SnapshotKeeper
from dilocoxd.daemon.state import ROUNDS_KEPT, Alert, Journal
from dilocoxd.daemon.transfers import Transfers
from dilocoxd.daemon.view import Sources, Who
from dilocoxd.errors import WireError
from dilocoxd.ids import PeerId, UnixTime
from dilocoxd.rounds.commands import StartRecovery
from dilocoxd.rounds.core import RoundStatus
from dilocoxd.rounds.events import Event, RoundMessage
from dilocoxd.rounds.limits import PayloadShape, Site as RoundSite, VoteKeys
from dilocoxd.rounds.membership import Membership
from dilocoxd.rounds.round import RoundMachine
from dilocoxd.store.aside import Aside
from dilocoxd.store.log import EntryLog
from dilocoxd.store.own_work import OwnWork
from dilocoxd.store.recording import Recording
from dilocoxd.swarm.fetch import Served
from dilocoxd.swarm.identity import Identity, is_signed_by_its_peer
from dilocoxd.swarm.pieces import Region
from dilocoxd.swarm.service import SelfDescription, Swarm
from dilocoxd.telemetry.alerts import CLEARED_BY
from dilocoxd.telemetry.catalogue import AlertCleared, AlertRaised, InputRejected
from dilocoxd.telemetry.metrics import Metrics
from dilocoxd.telemetry.sinks import open_sinks
from dilocoxd.wire.entry import SignedVote, genesis_hash
from dilocoxd.wire.local import RESULT
from dilocoxd.wire.messages import SegmentHeader
from dilocoxd.wire.records import PeerRecord

ROUND_MESSAGES = get_args(RoundMessage)
DIGEST_MISMATCH: Final = "digest_mismatch"


MakeSite = Callable[[SiteSettings, Callable[[SiteEvent], None]], Site]
"""daemon.site.LocalSite, or a test's own."""


def vote_keys(identity: Identity) -> VoteKeys:
    """Signatures for the round machine."""

    def sign(text: bytes) -> SignedVote:
        return SignedVote(identity.peer_id, identity.public_key_der, identity.sign(text))

    return VoteKeys(sign, is_signed_by_its_peer)


def _retention(opened: Opened) -> Retention:
    section, storage = opened.manifest.snapshot, opened.config.storage
    return Retention(section.every_rounds, section.keep, storage.payload_rounds_max, storage.payload_bytes_max)


class Daemon:
    """All parts of one peer."""

    def __init__(self, opened: Opened, log: EntryLog, make_site: MakeSite) -> None:
        self.opened = opened
        manifest, run_dir = opened.manifest, opened.run_dir
        self.run_id = manifest.run_id
        self.me = opened.identity.peer_id
        self.genesis = genesis_hash(self.run_id, manifest.sha256())
        self.lifecycle = Lifecycle()
        self.layout: SiteLayout | None = None
        """Sizes, once the outer worker has described the model."""
        self.journal = Journal(lambda: UnixTime(time.time()))
        sinks = opened.config.sinks
        name = f"{self.run_id}-{self.me[-8:]}"
        self.journal.sinks = open_sinks(sinks.tensorboard, sinks.wandb_project, name, run_dir.path)
        opened.events.listen(self._on_event)
        self.keys = vote_keys(opened.identity)
        self.log = log
        self.site = make_site(site_settings(run_dir, manifest, opened.config, self.me), self.on_site_event)
        view = first_view(manifest, self.genesis)
        kept_work, aside = OwnWork(run_dir.own_work), Aside(run_dir.aside)
        self.snapshots = SnapshotKeeper(
            run_dir.snapshots, _retention(opened), self._peer_heights, kept_work, aside, opened.events.emit
        )
        self.ledger = Ledger(self.site, log, view, self.me, self.snapshots.applied)
        self.books = OwnBooks(self.me, self.site, kept_work, opened.events)
        self.library = Library(manifest.canonical_bytes(), log, run_dir.snapshots)
        self.table = Membership(self.me)
        self.swarm = Swarm(swarm_settings(run_dir, manifest, opened.config, opened.identity), self, opened.events.emit)
        self.membership = MembershipDriver(
            self.table,
            self.swarm,
            opened.events,
            self._tell_rounds,
            lambda: self.lifecycle.state == "training",
            self.journal,
        )
        self.dial_back = DialBack(self._addresses_of, time.monotonic)
        self.promises = PromiseFile(run_dir.path)
        limit = opened.config.log.recording_mib << 20
        self.recorder = Recorder(Recording(run_dir.logs, limit) if limit else None)
        self.rounds: RoundDriver | None = None
        self.machine: RoundMachine | None = None
        self.metrics = Metrics(self._status, self.peers_json)
        self.site_history = SiteHistory(self.journal, opened.events, lambda: self.ledger.chain.height, self._note_idle)
        self.round_history = RoundHistory(self.me, self.journal, opened.events, self.metrics, lambda: self.ledger.chain)
        self.recovery = RecoveryDriver(
            RecoveryParts(
                books=self.books,
                ledger=self.ledger,
                client=self.swarm.fetch_client,
                keys=self.keys,
                limits=round_limits(manifest),
                snapshots=run_dir.snapshots,
                aside=aside,
                events=opened.events,
                moved=self.swarm.announce,
                took=self.round_history.took,
            )
        )
        self.view = self._make_view()

    def _make_view(self) -> DaemonView:
        who = Who(self.me, self.run_id)
        sources = Sources(
            lifecycle=self.lifecycle,
            journal=self.journal,
            ledger=self.ledger,
            site=self.site,
            peers=self.peers_json,
            round_status=self.round_status,
            recovery_text=lambda: self.recovery.text,
            swarm=self.swarm,
            p2pd=self.p2pd_status,
            layout=lambda: self.layout,
            opened=self.opened,
        )
        return DaemonView(who, sources, self.metrics.exposition)

    def _status(self) -> dict[str, Any]:
        return self.view.status()

    def p2pd_status(self) -> WorkerStatus:
        """p2pd, for GET /v1/status."""
        node = self.swarm.node
        pids = (node.p2pd_pid,) if node.is_running else ()
        state = "running" if node.is_running else "lost" if node.num_starts else "starting"
        return WorkerStatus(state, max(0, node.num_starts - 1), pids, node.num_starts)

    # --- the round machine, once the payload sizes are known ---

    async def make_rounds(self, payloads: PayloadMaps) -> Transfers:
        """Machine and driver for the state that the ledger has loaded."""
        kept = await self.promises.load(self.site.buffers.fd(RESULT), payloads)
        shape = PayloadShape(payloads.largest.num_passes, payloads.largest.segment_bytes)
        limits = round_limits(self.opened.manifest)
        who = RoundSite(self.me, self.run_id, self.genesis, self.keys)
        self.machine = self.recorder.open_machine(who, shape, limits, self.ledger.chain, kept)
        parts = RoundParts(
            recorder=self.recorder,
            site=self.site,
            ledger=self.ledger,
            promises=self.promises,
            books=self.books,
            post=self.swarm,
            history=self.round_history,
            count_bad=self.count_bad,
            moved=self.swarm.announce,
        )
        self.rounds = RoundDriver(parts, self.me, self.start_recovery)
        bulk = (self.swarm.bulk_out, self.swarm.bulk_in)
        return Transfers(self.run_id, self.site.buffers, payloads, bulk, self.rounds.tell)

    async def recall_rounds(self) -> None:
        """What the log says about earlier rounds, for GET /v1/rounds."""
        first = max(0, self.log.height - ROUNDS_KEPT + 1)
        for signed in await asyncio.to_thread(lambda: list(self.log.entries(first))):
            self.round_history.took(signed, at_unix_s=signed.time / 1000)

    def network_beat(self) -> int | None:
        """For the watchdog: rises while the network's loop runs; None before it does."""
        return self.swarm.contacts.num_looks or None

    def start_recovery(self, order: StartRecovery) -> None:
        """The round machine wants the chain of others."""
        assert self.rounds is not None
        self.recovery.start(order, self.rounds.tell)

    def round_status(self) -> RoundStatus | None:
        """What the round machine does; None before it exists."""
        return self.machine.status if self.machine is not None else None

    # --- what arrives ---

    def on_record(self, record: PeerRecord, is_fresh: bool) -> None:
        """News of a peer."""
        self.membership.on_record(record, is_fresh)

    def on_contact(self, peer: PeerId) -> None:
        """A peer answered us."""
        self.membership.on_contact(peer)

    async def on_message(self, peer: PeerId, message: Any) -> None:
        """A peer's message, in its order."""
        if not isinstance(message, ROUND_MESSAGES):
            raise WireError("unexpected_message", type(message).__name__)
        if self.rounds is not None:
            await self.rounds.tell_message(peer, message)

    def accept(self, peer: PeerId, header: SegmentHeader) -> Region:
        """Where a segment goes."""
        if self.rounds is None:
            raise WireError("busy", "this peer is still starting")
        return self.rounds.accept(peer, header)

    async def on_segment(self, peer: PeerId, header: SegmentHeader) -> None:
        """A segment is complete."""
        if self.rounds is not None and self.rounds.transfers is not None:
            await self.rounds.transfers.received(peer, header)

    async def open_resource(self, peer: PeerId, name: str) -> Served:
        """Bytes that a peer asks for."""
        if name == RESOURCE:
            return serve_bytes(await self.dial_back.answer(peer))
        return await self.library.open(peer, name)

    def _addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        record = self.table.record(peer)
        return record.addresses if record is not None else ()

    def on_site_event(self, event: SiteEvent) -> None:
        """The site tells something; called on the loop."""
        self.site_history.note(event)
        if isinstance(event, ContributionOffered):
            assert self.rounds is not None, "the site trains only after the round machine started"
            self.rounds.offer(event)

    # --- what others are told ---

    def describe(self) -> SelfDescription:
        """Contents of our heartbeat."""
        chain = self.ledger.chain
        step_s = self.site.status().step_seconds
        steps_per_s = 1.0 / step_s if step_s > 0 else 0.0
        return SelfDescription(
            state=self.lifecycle.record_state,
            chain_head=chain.head,
            chain_height=chain.height,
            chain_weight=chain.weight,
            state_digest=chain.state_digest,
            contributed_round=self.ledger.own_rounds[-1] if self.ledger.own_rounds else -1,
            steps_per_s=steps_per_s,
            tokens_per_s=steps_per_s * self.site_history.tokens_per_step,
        )

    def _peer_heights(self) -> list[int]:
        return [int(view.height) for view in self.membership.views() if view.is_live]

    def _tell_rounds(self, event: Event) -> None:
        if self.rounds is not None:
            self.rounds.tell(event)

    def _note_idle(self, idle_s: float) -> None:
        self.round_history.idle_s = idle_s

    def count_bad(self, peer: str, rule: str, detail: str) -> None:
        """A peer broke a rule of the round protocol."""
        self.swarm.guard.count(peer, rule)
        self.opened.events.emit(InputRejected(peer=peer, code=rule, detail=detail[:300]))
        if rule == DIGEST_MISMATCH:
            text = f"{peer} has the same chain head but other bits of the model: {detail[:200]}"
            self.alert(DIGEST_MISMATCH, text, "the site in the minority rebuilds itself; watch whether it comes back")

    def alert(self, code: str, text: str, remedy: str) -> None:
        """Tell the operator."""
        self.opened.events.emit(AlertRaised(code=code, text=text, remedy=remedy))

    def _on_event(self, record: dict[str, object]) -> None:
        name = record["event"]
        if name == AlertRaised.name:
            self.journal.raise_alert(Alert(str(record["code"]), str(record["text"]), str(record["remedy"])))
        elif name == AlertCleared.name:
            self.journal.clear_alert(str(record["code"]))
        for code in CLEARED_BY.get(str(name), ()):
            self.clear_alert(code)

    def num_dropped(self) -> int:
        """Values that metrics sinks dropped since the start."""
        return sum(sink.num_dropped for sink in self.journal.sinks)

    def clear_alert(self, code: str) -> None:
        """The reason of an alert is gone."""
        if code in self.journal.alerts:
            self.opened.events.emit(AlertCleared(code=code))

    def peers_json(self) -> list[dict[str, Any]]:
        """GET /v1/peers."""
        recent = self.ledger.chain.recent
        last = recent[-1] if recent else frozenset()
        return self.membership.as_json(last)
