"""Composes the status from the parts that know it (docs/internals.md section 6). Reads, never decides.

`waiting_for` is one sentence from the first part that waits, outermost first, so that the daemon can always say what
it waits for and why.
"""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from dilocoxd import __version__
from dilocoxd.answers.authorities import AuthorityList
from dilocoxd.answers.members import Member
from dilocoxd.answers.nodes import node_wait
from dilocoxd.answers.peers import Peer
from dilocoxd.answers.progress import RunProgress
from dilocoxd.answers.status import (
    Audits,
    LifetimeTotals,
    Losses,
    PayloadSizes,
    PeerCounts,
    Phase,
    PublicAddress,
    Round,
    Samples,
    Status,
    Strategy,
    Totals,
    TrainerProcesses,
    VotedTwice,
    WorkerProcess,
)
from dilocoxd.answers.words import plural
from dilocoxd.config.hugging_face import idle_parameters
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.sections.segments import num_parameters
from dilocoxd.config.site_fit import unwatched
from dilocoxd.daemon.chain.ledger import Ledger
from dilocoxd.daemon.chain.probation import place_wait, probation_of
from dilocoxd.daemon.observe.forecast import ExchangeForecast
from dilocoxd.daemon.observe.journal import Journal
from dilocoxd.daemon.observe.memory import memory_bytes
from dilocoxd.daemon.observe.names import SiteNames
from dilocoxd.daemon.observe.progress import PACE_ROUNDS, OwnPace, SchedulePlace, flops_per_token, progress
from dilocoxd.daemon.process.lifecycle import Lifecycle
from dilocoxd.daemon.process.open_run import Opened
from dilocoxd.daemon.site.interface import SiteLayout, SiteStatus, TrainingSite, WorkerStatus
from dilocoxd.ids import PeerId, RunId
from dilocoxd.machines.chain import ChainView
from dilocoxd.machines.reading.volumes import VolumeLeases
from dilocoxd.machines.round.outputs import RoundStatus
from dilocoxd.swarm.service import Swarm

MAJORITY: Final = "quorum = majority"
"""How the sentence begins that says who is missing (machines/round/grouping.py)."""


@dataclass(frozen=True, slots=True)
class Who:
    """Which site this is, in which run, and what people call it and the others."""

    peer_id: PeerId
    run_id: RunId
    names: SiteNames
    """Of all sites; those of others change."""


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Where the values come from; each call is cheap."""

    who: Who
    lifecycle: Lifecycle
    journal: Journal
    ledger: Ledger
    site: TrainingSite
    peers: Callable[[], list[Peer]]
    members: Callable[[], list[Member]]
    authorities: Callable[[], list[AuthorityList]]
    round_status: Callable[[], RoundStatus | None]
    recovery_text: Callable[[], str]
    swarm: Swarm
    layout: Callable[[], SiteLayout | None]
    opened: Opened
    forecast: ExchangeForecast
    audits: Callable[[], Audits] = Audits
    public_addresses: Callable[[], tuple[PublicAddress, ...]] = tuple


class StatusReader:
    """What is so now."""

    def __init__(self, sources: StatusSources) -> None:
        self._from = sources

    def waiting_for(self) -> str:
        """Outermost first: start and end of the daemon, recovery, the site, the round, the network."""
        sources = self._from
        status = sources.round_status()
        candidates = (
            (sources.lifecycle.evicted or sources.lifecycle.follows) if sources.lifecycle.state == "paused" else "",
            node_wait(sources.site.status().nodes) if sources.lifecycle.state != "leaving" else "",
            sources.lifecycle.waiting_for,
            sources.recovery_text(),
            site_wait(sources.site.status(), sources.peers()),
            self._round_wait(status) if status is not None else "",
        )
        return sources.who.names.in_words(next((text for text in candidates if text), ""))

    def read(self) -> Status:
        """GET /v1/status."""
        sources, journal = self._from, self._from.journal
        site = sources.site.status()
        chain, peers = sources.ledger.chain, sources.peers()
        behind = self._rounds_behind(peers)
        probation = probation_of(chain, sources.who.peer_id)
        return Status(
            peer_id=sources.who.peer_id,
            name=sources.who.names.of(sources.who.peer_id),
            run_id=sources.who.run_id,
            version=__version__,
            state=sources.lifecycle.state,
            waiting_for=self.waiting_for(),
            height=chain.height,
            chain_head=chain.head.hex(),
            anchor_sha256=site.anchor_sha256.hex() if site.anchor_sha256 else "",
            state_digest=chain.state_digest.hex(),
            started_at=journal.started_at,
            uptime_s=max(0.0, journal.now() - journal.started_at),
            addresses=tuple(sources.swarm.addresses()),
            join_address=sources.swarm.join_address(),
            admission=sources.opened.manifest.admission.mode,
            phase=_phase(site),
            round=self._round(),
            progress=self._progress(site, peers),
            totals=self._totals(site),
            lifetime=self._lifetime(site),
            losses=self._losses(),
            peers=_counts(peers, chain),
            strategy=Strategy(inner_steps=chain.inner_steps, lowrank_r=chain.lowrank_r),
            payload=self._payload(),
            workers=_workers({**site.workers, "p2pd": _p2pd(sources.swarm)}),
            bad_input=sources.swarm.guard.bad_input(),
            alerts=tuple(journal.alerts.values()),
            exchange=sources.forecast.newest,
            probation=probation,
            place_wait=place_wait(probation, peers),
            audits=sources.audits(),
            public_addresses=sources.public_addresses(),
            samples=samples_of(sources.ledger.reading.leases),
            voted_twice=voted_twice_of(chain, sources.who.names.of),
            nodes=site.nodes,
            unwatched=unwatched(sources.opened.manifest, sources.opened.config, journal.losses_told),
            rounds_behind=behind,
            took_part_last_round=sources.who.peer_id in chain.recent[-1] if chain.recent and behind == 0 else None,
        )

    def _rounds_behind(self, peers: Sequence[Peer]) -> int | None:
        """A height that recovery found to be claimed only is nobody's."""
        sources, status = self._from, self._from.round_status()
        if sources.lifecycle.state in ("starting", "joining") or sources.lifecycle.evicted:
            return None
        if sources.lifecycle.state != "catching_up" and not sources.recovery_text():
            return 0
        claimed = status.unconfirmed if status is not None else frozenset()
        ahead = [-peer.rounds_behind for peer in peers if peer.is_live and peer.peer_id not in claimed]
        furthest = max(ahead, default=0)
        return furthest if furthest > 0 else None

    def _losses(self) -> Losses:
        inner, validation = self._from.journal.inner_losses.newest, self._from.journal.validation_losses.newest
        return Losses(
            inner=inner[2] if inner else None,
            validation=validation[2] if validation else None,
            validation_round=validation[1] if validation else None,
            validation_by_source=self._from.journal.validation_by_source,
        )

    def _payload(self) -> PayloadSizes | None:
        layout = self._from.layout()
        if layout is None:
            return None
        payload_bytes = max(sum(map(sum, table)) for table in layout.payload_bytes.values())
        return PayloadSizes(
            parameters=layout.numel,
            fp32_bytes=4 * layout.numel,
            payload_bytes=payload_bytes,
            kept_from=self._from.ledger.log.payloads_kept_from,
            compression_ratio=4 * layout.numel / payload_bytes if payload_bytes else 0.0,
        )

    def _round(self) -> Round:
        status = self._from.round_status()
        if status is None:
            return Round(
                round=self._from.ledger.chain.height,
                attempt=0,
                state="idle",
                coordinator="",
                group=(),
                observers=(),
                waiting_for=self._from.lifecycle.waiting_for,
            )
        return Round(
            round=status.round,
            attempt=status.attempt - status.first_attempt,
            state=status.state,
            coordinator=status.coordinator or "",
            group=status.group,
            observers=status.observers,
            waiting_for=self._from.who.names.in_words(self._round_wait(status)),
        )

    def _round_wait(self, status: RoundStatus) -> str:
        if not status.waiting_for.startswith(MAJORITY):
            return status.waiting_for
        return with_evicted(status.waiting_for, self._from.ledger.chain.electorate(()), self._from.members())

    def _progress(self, site: SiteStatus, peers: list[Peer]) -> RunProgress:
        sources, layout, manifest = self._from, self._from.layout(), self._from.opened.manifest
        chain = sources.ledger.chain
        pids = [pid for worker in site.workers.values() for pid in worker.pids]
        own = OwnPace(
            state=sources.lifecycle.state,
            is_training=site.is_training,
            step_seconds=site.step_seconds,
            tokens_per_step=site.tokens_per_step,
            learning_rate=site.learning_rate,
            gradient_norm=site.gradient_norm,
            data_seconds=site.data_seconds,
            bubble=site.bubble,
            stages=site.stages,
            memory_bytes=memory_bytes([os.getpid(), *pids, *_p2pd(sources.swarm).pids]),
            skipped_steps=site.skipped_steps,
            rank_memory_bytes=site.rank_memory_bytes,
            peak_flops_per_s=sources.opened.config.flops_peak,
            flops_per_token=flops_per_token(
                manifest.model.kind,
                _used_parameters(manifest, layout.numel) if layout is not None else None,
                num_parameters(manifest.model) if manifest.lora.rank else 0,
            ),
        )
        schedule = SchedulePlace(
            steps_done=site.shared_steps,
            steps_total=manifest.inner.total_steps,
            inner_steps=chain.inner_steps,
            chain_tokens=chain.weight,
            stop_after_tokens=manifest.run.stop_after_tokens,
        )
        return progress(own, schedule, peers, sources.journal.newest_rounds(PACE_ROUNDS + 2))

    def _lifetime(self, site: SiteStatus) -> LifetimeTotals:
        journal = self._from.journal
        now, before, since = journal.totals, journal.earlier, journal.counted_since
        is_known = since is not None or not self._from.ledger.own_rounds
        return LifetimeTotals(
            tokens=before.tokens + site.tokens,
            inner_steps=before.inner_steps + now.inner_steps,
            bytes_sent=before.bytes_sent + now.bytes_sent if is_known else None,
            bytes_received=before.bytes_received + now.bytes_received if is_known else None,
            attempts_failed=before.attempts_failed + now.attempts_failed if is_known else None,
            counted_since=since if since is not None else journal.started_at,
        )

    def _totals(self, site: SiteStatus) -> Totals:
        totals = self._from.journal.totals
        return Totals(
            tokens=site.tokens,
            inner_steps=totals.inner_steps,
            contributions=len(self._from.ledger.own_rounds),
            rounds_committed=self._from.ledger.chain.height,
            bytes_sent=totals.bytes_sent,
            bytes_received=totals.bytes_received,
            idle_s=site.idle_seconds,
            train_s=site.train_seconds,
            attempts_failed=totals.attempts_failed,
        )


def voted_twice_of(chain: ChainView, name_of: Callable[[str], str]) -> tuple[VotedTwice, ...]:
    """Who voted twice, as the chain at our height says."""
    return tuple(
        VotedTwice(peer_id=peer, name=name_of(peer), until_round=last) for peer, last in sorted(chain.barred.items())
    )


def samples_of(leases: VolumeLeases | None) -> Samples | None:
    """What the leases of our height have counted; None where nobody leases."""
    return Samples(taken=leases.num_taken, twice=leases.num_twice) if leases is not None else None


def with_evicted(text: str, electorate: Set[PeerId], members: Sequence[Member]) -> str:
    """`text`, which says that more than half of `electorate` are needed, with those of them who cannot come back.

    The chain does not know evictions (they are not the same everywhere): who was evicted counts until eight entries
    without it have been committed.
    """
    of_today = {member.peer_id for member in members if member.state == "member"}
    gone = sorted(electorate & {member.peer_id for member in members if member.state == "evicted"} - of_today)
    if not gone:
        return text
    counted = "1 of them is evicted and still counts" if len(gone) == 1 else f"{len(gone)} are evicted and still count"
    told = f"{text}; {counted} ({', '.join(gone)})"
    if 2 * (len(electorate) - len(gone)) > len(electorate):
        return told
    return f"{told}, so no majority can come: go on in a new run, `dilocoxd start --from RUN_DIR`"


def site_wait(site: SiteStatus, peers: Sequence[Peer] = ()) -> str:
    """What the site waits for, and how far that is; at how many others too, where it cannot train from its state."""
    if site.is_spoiled:
        states = [peer.state for peer in peers if peer.is_live and peer.state in ("training", "halted")]
        others = f"{states.count('halted')} of {plural(len(states), 'other site')} say so too"
        return f"{site.waiting_for}; {others}" if states else site.waiting_for
    return f"{site.waiting_for} ({site.doing})" if site.waiting_for and site.doing else site.waiting_for


def _used_parameters(manifest: Manifest, trained: int) -> int:
    """Without experts that a token does not pass through."""
    is_whole = manifest.model.kind == "hf" and not manifest.lora.rank
    return trained - idle_parameters(manifest.model.config) if is_whole else trained


def _phase(site: SiteStatus) -> Phase:
    return Phase(
        phase=site.phase,
        inner_step=site.inner_step,
        inner_steps=site.inner_steps,
        global_step=site.global_step,
        base_round=site.base_round,
        step_seconds=site.step_seconds,
    )


def _counts(peers: Sequence[Peer], chain: ChainView) -> PeerCounts:
    return PeerCounts(
        known=len(peers),
        live=sum(1 for peer in peers if peer.is_live),
        with_data=sum(1 for peer in peers if peer.is_live and peer.has_data),
        took_part_last_round=len(chain.recent[-1]) if chain.recent else 0,
        missed_last_round=chain.missed,
    )


def _p2pd(swarm: Swarm) -> WorkerStatus:
    node = swarm.node
    pids = (node.p2pd_pid,) if node.is_running else ()
    state = "running" if node.is_running else "lost" if node.num_starts else "starting"
    return WorkerStatus(state, max(0, node.num_starts - 1), pids, node.num_starts)


def _workers(workers: Mapping[str, WorkerStatus]) -> dict[str, WorkerProcess | TrainerProcesses]:
    shown: dict[str, WorkerProcess | TrainerProcesses] = {}
    for name, status in workers.items():
        if name == "trainer":
            shown[name] = TrainerProcesses(
                state=status.state, restarts=status.restarts, generation=status.generation, pids=status.pids
            )
        else:
            pid = status.pids[0] if status.pids else 0
            shown[name] = WorkerProcess(
                state=status.state, restarts=status.restarts, pid=pid, part_pids=status.part_pids
            )
    return shown
