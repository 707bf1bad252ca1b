"""Builds the parts of one daemon from its run directory and joins them; app.py starts and stops them.

Wires only: what one part is to another can be read here; what they do is theirs.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dilocoxd.answers.peers import Peer
from dilocoxd.answers.status import Audits, PublicAddress, Status
from dilocoxd.config.footprint.estimate import site_estimate
from dilocoxd.daemon.alerts import AlertDriver, Watched
from dilocoxd.daemon.audit.auditor import Auditor
from dilocoxd.daemon.audit.disproofs import Disproofs
from dilocoxd.daemon.audit.inputs import AuditSources
from dilocoxd.daemon.audit.kept_shares import KeptShares, share_lengths
from dilocoxd.daemon.audit.shelf import ProofShelf
from dilocoxd.daemon.chain.ledger import Ledger, first_view
from dilocoxd.daemon.chain.owed_work import WorkKeeper
from dilocoxd.daemon.chain.payload_map import PayloadMaps
from dilocoxd.daemon.chain.promise_file import PromiseFile
from dilocoxd.daemon.chain.reading_plan import ReadingPlan, lease_rules
from dilocoxd.daemon.chain.snapshots import Retention, SnapshotKeeper
from dilocoxd.daemon.control import ControlParts
from dilocoxd.daemon.ending import Ending
from dilocoxd.daemon.observe.alert_book import AlertBook
from dilocoxd.daemon.observe.forecast import ExchangeForecast
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.observe.names import SiteNames
from dilocoxd.daemon.observe.progress import PACE_ROUNDS
from dilocoxd.daemon.observe.rounds import RoundHistory
from dilocoxd.daemon.observe.site import SiteHistory
from dilocoxd.daemon.observe.status import StatusSources, Who
from dilocoxd.daemon.observe.view import DaemonView
from dilocoxd.daemon.peers.arrivals import Arrivals
from dilocoxd.daemon.peers.authorities import RunAuthorities
from dilocoxd.daemon.peers.dial_back import DialBack
from dilocoxd.daemon.peers.heartbeat import Heartbeat
from dilocoxd.daemon.peers.losses import own_losses
from dilocoxd.daemon.peers.members import Members
from dilocoxd.daemon.peers.membership import MembershipDriver, OwnTraining, PeerMemory
from dilocoxd.daemon.peers.offences import Offences
from dilocoxd.daemon.peers.outside import OutsideView, OutsideWatch
from dilocoxd.daemon.peers.serving import Library
from dilocoxd.daemon.peers.visits import Visits
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.daemon.process.open_run import Opened
from dilocoxd.daemon.recovery.adoption import Adoption, AdoptionParts
from dilocoxd.daemon.recovery.driver import RecoveryDriver, RecoveryParts
from dilocoxd.daemon.round.driver import RoundDriver, RoundParts
from dilocoxd.daemon.round.offers import OfferCheck
from dilocoxd.daemon.round.recorder import Recorder
from dilocoxd.daemon.round.roles import Roles
from dilocoxd.daemon.round.signing import offer_signer, vote_keys
from dilocoxd.daemon.round.suspects import Suspects
from dilocoxd.daemon.round.transfers import Transfers
from dilocoxd.daemon.sampling import Sampler
from dilocoxd.daemon.settings import (
    audit_rules,
    payload_shape,
    prepared_text,
    round_limits,
    site_settings,
    swarm_settings,
)
from dilocoxd.daemon.site.interface import SiteEvent, SiteLayout, SiteSettings, TrainingSite
from dilocoxd.daemon.starting import Surroundings
from dilocoxd.daemon.workers.kills import KillReader
from dilocoxd.ids import PeerId, UnixTime
from dilocoxd.machines.limits import Ourselves
from dilocoxd.machines.membership.machine import Membership
from dilocoxd.machines.phase.outputs import OfferContribution, TellSpoiled, TellTrains
from dilocoxd.machines.round.inputs import Event
from dilocoxd.machines.round.machine import RoundMachine
from dilocoxd.machines.round.outputs import ExtendRecovery, RoundStatus, StartRecovery
from dilocoxd.store.admission import read_checkpoint
from dilocoxd.store.audits import AuditFolders
from dilocoxd.store.branch_aside import Aside
from dilocoxd.store.kept_work import KeptWorkStore
from dilocoxd.store.log import EntryLog
from dilocoxd.store.recording import Recording
from dilocoxd.swarm.interface import SwarmSettings
from dilocoxd.swarm.p2pd.connections import ip_of
from dilocoxd.swarm.service import Swarm
from dilocoxd.telemetry.metrics import Metrics
from dilocoxd.telemetry.sinks import Sink, open_sinks
from dilocoxd.wire.entry import genesis_hash
from dilocoxd.wire.local.buffers import RESULT

MakeSite = Callable[[SiteSettings, Callable[[SiteEvent], None]], TrainingSite]
"""daemon.site.LocalSite, or a test's own."""


def _retention(opened: Opened) -> Retention:
    section, storage = opened.manifest.snapshot, opened.config.storage
    keeps_first = bool(opened.manifest.init.state_digest)
    limits = (storage.payload_rounds_max, storage.payload_bytes_max)
    return Retention(section.every_rounds, section.keep, *limits, keeps_first=keeps_first)


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
        opened.events.listen(self.journal.remember)
        self.journal.sinks = _sinks(opened)
        self.names = SiteNames(self.me, opened.config.site.shown)
        self.journal.in_words = opened.events.in_words = self.names.in_words
        self.alerts = AlertBook(self.journal, opened.events)
        self.keys = vote_keys(opened.identity, self.genesis)
        self.log = log
        reading = ReadingPlan(lease_rules(manifest), self.me)
        settings = replace(site_settings(run_dir, manifest, opened.config, self.me), with_samples=reading.with_samples)
        self.site = make_site(settings, self._on_site_event)
        view = first_view(manifest, self.genesis)
        kept_work, aside = KeptWorkStore(run_dir.own_work), Aside(run_dir.aside)
        self.snapshots = SnapshotKeeper(
            run_dir.snapshots, _retention(opened), self._peer_heights, kept_work, aside, opened.events.emit
        )
        self.ledger = Ledger(self.site, log, view, self.me, self.snapshots.applied, reading)
        self.work_keeper = WorkKeeper(self.me, self.site, kept_work, run_dir.feedback, opened.events)
        self.site_history = self._make_site_history()
        self.table = Membership(self.me)
        heartbeat = Heartbeat(self.lifecycle, self.ledger, self.site, lambda: self.site_history.tokens_per_step)
        self._shelf = ProofShelf()
        self._kept_shares = KeptShares(run_dir.own_work, lambda: share_lengths(self.ledger.payloads))
        library = self._make_library()
        dial_back = DialBack(self._addresses_of, self._talks_from, time.monotonic)
        self.arrivals = Arrivals(heartbeat.describe, library, dial_back)
        network = swarm_settings(run_dir, manifest, opened.config, opened.identity)
        self.swarm = Swarm(network, self.arrivals, opened.events.emit)
        library.network = self.swarm.node.network
        library.authorities, library.losses = self.swarm.decisions.known_authorities, partial(own_losses, self.journal)
        self.members = self._make_members(network)
        self.authorities = RunAuthorities(self.swarm, opened.identity, self.ledger.roll)
        self.offences = Offences(self.swarm.guard, opened.events, self.alerts)
        self.membership = self.arrivals.membership = self._make_membership()
        self.visits = Visits(self.swarm, self.names, self.table.known, lambda: self.ledger.chain.height)
        self._outside = OutsideView(opened.config.network.port)
        self.promises, self.recorder = PromiseFile(run_dir.path), _recorder(opened)
        self.rounds: RoundDriver | None = None
        self.machine: RoundMachine | None = None
        self.metrics = Metrics(self._status, self._peers)
        self.forecast = ExchangeForecast(manifest.strategy.codec, lambda: self.layout, is_gathered=manifest.is_gathered)
        self.round_history = RoundHistory(
            self.me, self.journal, opened.events, self.metrics, lambda: self.ledger.chain, self.forecast
        )
        self.adoption = Adoption(AdoptionParts(run_dir.adopted, log, self._peers, self.visits.peer_called, self.alerts))
        self.recovery = self._make_recovery(aside)
        self.auditor = self._make_auditor()
        self.sampler = Sampler(opened.run_dir, has_own_loop=manifest.model.kind == "external")
        self.view = self._make_view()
        self.alert_driver = self._make_alert_driver()

    def _make_members(self, network: SwarmSettings) -> Members:
        return Members(
            self.swarm,
            self.opened.identity,
            self.ledger.roll,
            network.membership,
            self.names.of,
            lambda: self.ledger.chain.barred,
        )

    def _make_membership(self) -> MembershipDriver:
        return MembershipDriver(
            self.table,
            self.swarm,
            self.opened.events,
            self._tell_rounds,
            OwnTraining(lambda: self.lifecycle.state == "training", lambda: self.site.status().spoiled_by),
            PeerMemory(self.journal, self.names),
        )

    def _make_site_history(self) -> SiteHistory:
        kills = KillReader(site_estimate(self.opened.manifest, self.opened.config).node_bytes)
        return SiteHistory(self.journal, self.opened.events, lambda: self.ledger.chain.height, self._note_idle, kills)

    def _make_recovery(self, aside: Aside) -> RecoveryDriver:
        checkpoint = read_checkpoint(self.opened.run_dir.checkpoint)
        return RecoveryDriver(
            RecoveryParts(
                work_keeper=self.work_keeper,
                ledger=self.ledger,
                client=self.swarm.fetch_client,
                keys=self.keys,
                limits=replace(round_limits(self.opened.manifest), checkpoint=checkpoint),
                snapshots=self.opened.run_dir.snapshots,
                aside=aside,
                events=self.opened.events,
                moved=self.swarm.announce,
                took=self.round_history.took,
                adoption=self.adoption,
            )
        )

    def _make_library(self) -> Library:
        opened, text = self.opened, prepared_text(self.opened.manifest, self.opened.config)
        shares = self._kept_shares if opened.manifest.reduction.verify != "none" else None
        return Library(opened.manifest.canonical_bytes(), self.log, opened.run_dir.snapshots, text, shares, self._shelf)

    def _make_auditor(self) -> Auditor | None:
        manifest, folders = self.opened.manifest, AuditFolders(self.opened.run_dir.path)
        memory = manifest.strategy.participation_rounds
        if manifest.reduction.verify == "none":
            return None
        disproofs = Disproofs(self.me, self.members.vote_against, self.log, self._shelf)
        sources = AuditSources(self.me, self.ledger, self.swarm.fetch_client, self._kept_shares, folders, memory)
        auditor = Auditor(audit_rules(manifest), sources, self.site, self.alerts, self.opened.events.emit, disproofs)
        self.arrivals.on_false_sum = auditor.hear
        return auditor

    def _make_view(self) -> DaemonView:
        sources = StatusSources(
            who=Who(self.me, self.run_id, self.names),
            lifecycle=self.lifecycle,
            journal=self.journal,
            ledger=self.ledger,
            site=self.site,
            peers=self._peers,
            members=self.members.shown,
            authorities=self.authorities.shown,
            round_status=self.round_status,
            recovery_text=lambda: self.recovery.text,
            swarm=self.swarm,
            layout=lambda: self.layout,
            opened=self.opened,
            forecast=self.forecast,
            audits=lambda: self.auditor.counts if self.auditor is not None else Audits(),
            public_addresses=self._public_addresses,
        )
        return DaemonView(sources, self.metrics.exposition, lambda: self.sampler.shown)

    def _make_alert_driver(self) -> AlertDriver:
        watched = Watched(
            self.view.status,
            self.view.peers,
            self.opened.run_dir.path,
            lambda: self.snapshots.newest_bytes,
            lambda: self.journal.num_dropped,
            lambda: self.journal.newest_rounds(PACE_ROUNDS),
            self.journal.tell_figures,
        )
        driver = AlertDriver(watched, self.alerts)
        self.opened.events.listen(driver.note)
        return driver

    def control_parts(self) -> ControlParts:
        """What an operator's commands work with."""
        return ControlParts(
            lifecycle=self.lifecycle,
            pauses=self.ledger.pauses,
            site=self.site,
            has_own_loop=self.opened.manifest.model.kind == "external",
            run_directory=self.opened.run_dir.path,
            loaded_height=lambda: self.ledger.chain.height if self.rounds is not None else None,
            sampler=self.sampler,
            snapshots=self.snapshots,
            snapshot_directory=self.opened.run_dir.snapshots,
            live_peers=self.membership.live,
            fetch_bytes=self.swarm.fetch_bytes,
            visits=self.visits,
            members=self.members,
            adoption=self.adoption,
            authorities=self.authorities,
            tell_others=self._tell_others,
            events=self.opened.events,
        )

    def surroundings(self) -> Surroundings:
        """What the start looks at before this site may train."""
        return Surroundings(
            bootstrap=self.opened.config.network.bootstrap,
            membership=self.membership,
            height=lambda: self.ledger.chain.height,
            had_entries=lambda: self.promises.round_at_start > 0,
            named_height=self.recovery.named_height,
            contact_error=self.swarm.contacts.last_error,
            unconfirmed=lambda: self.machine.status.unconfirmed if self.machine is not None else frozenset(),
            recovery_text=lambda: self.recovery.text,
            lifecycle=self.lifecycle,
            events=self.opened.events,
        )

    def ending(self) -> Ending:
        """What the end of the run looks at."""
        limit, events = self.opened.manifest.run.stop_after_tokens, self.opened.events
        write_last = partial(self.snapshots.write_last, self.log)
        return Ending(limit, self.ledger, self._peer_heights, write_last, self.lifecycle, events)

    def _status(self) -> Status:
        return self.view.status()

    def _peers(self) -> list[Peer]:
        return self.membership.shown(self.ledger.chain)

    # --- the round machine, once the payload sizes are known ---

    async def make_rounds(self, payloads: PayloadMaps) -> Transfers:
        """Machine and driver for the state that the ledger has loaded."""
        kept = await self.promises.load(self.site.buffers.fd(RESULT), payloads)
        shape = payload_shape(self.opened.manifest, payloads)
        limits = round_limits(self.opened.manifest)
        who = Ourselves(self.me, self.run_id, self.genesis, self.keys)
        self.machine = self.recorder.open_machine(who, shape, limits, self.ledger.chain, kept)
        parts = RoundParts(
            recorder=self.recorder,
            site=self.site,
            ledger=self.ledger,
            promises=self.promises,
            work_keeper=self.work_keeper,
            post=self.swarm,
            history=self.round_history,
            suspects=Suspects(self.alerts, self.opened.events.emit),
            count_bad=self.offences.count,
            sign_offer=offer_signer(self.opened.identity, self.genesis),
            roles=Roles(self.swarm.doors.book, self.offences.count),
            offers=OfferCheck(self.keys, limits.contributors_max),
            auditor=self.auditor,
            moved=self.swarm.announce,
        )
        self.rounds = self.arrivals.rounds = RoundDriver(parts, self.me, self._order_recovery)
        bulk = (self.swarm.bulk_out, self.swarm.bulk_in)
        return Transfers(self.run_id, self.site.buffers, payloads, bulk, self.rounds.tell)

    def _order_recovery(self, order: StartRecovery | ExtendRecovery) -> None:
        assert self.rounds is not None
        self.recovery.take(order, self.rounds.tell)

    def round_status(self) -> RoundStatus | None:
        """What the round machine does; None before it exists."""
        return self.machine.status if self.machine is not None else None

    # --- wires ---

    async def _talks_from(self, peer: PeerId) -> tuple[str, ...]:
        ends = (await self.swarm.node.connections()).get(peer, ())
        return tuple(filter(None, map(ip_of, ends)))

    def _public_addresses(self) -> tuple[PublicAddress, ...]:
        told = [address.removesuffix(f"/p2p/{self.me}") for address in self.swarm.addresses()]
        return self._outside.rows(time.monotonic(), told)

    def outside_watch(self) -> OutsideWatch:
        """Asks others where they see this site; to be run."""
        network = self.swarm.node.network
        return OutsideWatch(self._outside, self.swarm.fetch_bytes, self.membership.live, network, self._announce)

    def _announce(self, found: tuple[str, ...]) -> None:
        if not self.opened.config.network.announce:  # the operator knows better
            self.swarm.public = tuple(f"{address}/p2p/{self.me}" for address in found)

    def _addresses_of(self, peer: PeerId) -> tuple[str, ...]:
        record = self.table.record(peer)
        return record.addresses if record is not None else ()

    def _on_site_event(self, event: SiteEvent) -> None:
        """The site tells something; called on the loop."""
        self.site_history.note(event)
        if isinstance(event, OfferContribution):
            assert self.rounds is not None, "the site trains only after the round machine started"
            self.rounds.offer(event)
        elif isinstance(event, TellSpoiled | TellTrains):
            self._tell_others()

    def _tell_others(self) -> None:
        self.membership.report()
        self.swarm.announce()

    def _peer_heights(self) -> list[int]:
        return self.membership.heights()

    def _tell_rounds(self, event: Event) -> None:
        if self.rounds is not None:
            self.rounds.tell(event)

    def _note_idle(self, idle_s: float) -> None:
        self.round_history.idle_s = idle_s


def _recorder(opened: Opened) -> Recorder:
    limit = opened.config.log.recording_mib << 20
    return Recorder(Recording(opened.run_dir.logs, limit) if limit else None)


def _sinks(opened: Opened) -> list[Sink]:
    sinks, name = opened.config.sinks, f"{opened.manifest.run_id}-{opened.identity.peer_id[-8:]}"
    return open_sinks(sinks.tensorboard, sinks.wandb_project, name, opened.run_dir.path)
