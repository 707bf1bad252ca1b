"""Everything that the HTTP API reads: status, history in memory, log and snapshots on disk, configuration.

Implements api.interface.View. Reads, never decides; files are read in a thread.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dilocoxd.answers.alerts import ExplainedAlert, PastAlert
from dilocoxd.answers.authorities import AuthorityList
from dilocoxd.answers.history import LossCurves, OwnSpan, SiteLosses, SiteTimeline, SwarmTimeline
from dilocoxd.answers.members import Member
from dilocoxd.answers.peers import Peer
from dilocoxd.answers.rounds import LogEntry, RoundRow
from dilocoxd.answers.site import ProfileStatus, ResolvedConfig, Sample, Snapshot
from dilocoxd.answers.status import Status
from dilocoxd.daemon.observe.log_entries import log_entries
from dilocoxd.daemon.observe.status import StatusReader, StatusSources
from dilocoxd.errors import StoreError
from dilocoxd.store.snapshots import list_rounds, read_index
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.telemetry.masking import masked_table

OWN_SPANS_SHOWN: Final = 2000


class DaemonView:
    """The answers of one daemon; the status is put together in status.py."""

    def __init__(self, sources: StatusSources, exposition: Callable[[], bytes], sample: Callable[[], Sample]) -> None:
        self._from = sources
        self._status = StatusReader(sources)
        self._exposition = exposition
        self.sample = sample
        """GET /v1/sample."""

    @property
    def is_healthy(self) -> bool:
        """The loop answers, and nothing has failed for good."""
        return self._from.lifecycle.state != "failed"

    @property
    def is_ready(self) -> bool:
        """The site trains."""
        return self._from.lifecycle.state == "training" and self._from.site.status().is_training

    def status(self) -> Status:
        """GET /v1/status."""
        return self._status.read()

    def peers(self) -> list[Peer]:
        """GET /v1/peers."""
        return self._from.peers()

    def members(self) -> list[Member]:
        """GET /v1/members."""
        return self._from.members()

    def authorities(self) -> list[AuthorityList]:
        """GET /v1/authorities."""
        return self._from.authorities()

    def rounds(self, first: int, limit: int) -> list[RoundRow]:
        """Rounds ascending from `first`: committed ones and the one that is under way."""
        rows = self._from.journal.rounds
        return [rows[index] for index in sorted(index for index in rows if index >= first)[:limit]]

    def rounds_before(self, before: int | None, limit: int) -> list[RoundRow]:
        """Rounds descending, below `before` (None: from the newest)."""
        rows = self._from.journal.rounds
        chosen = sorted((index for index in rows if before is None or index < before), reverse=True)[:limit]
        return [rows[index] for index in chosen]

    def round(self, index: int) -> RoundRow | None:
        """One round, or None if this daemon does not know it."""
        return self._from.journal.rounds.get(index)

    def losses(self) -> LossCurves:
        """GET /v1/losses."""
        journal, names = self._from.journal, self._from.who.names
        told = journal.other_losses
        return LossCurves(
            inner=journal.inner_losses.points(),
            validation=journal.validation_losses.points(),
            sites=[SiteLosses(peer_id=peer, name=names.of(peer), points=told.of(peer)) for peer in told.sites()],
        )

    def timeline(self) -> list[OwnSpan]:
        """GET /v1/timeline."""
        return list(self._from.journal.spans)

    def swarm_timeline(self, since: float) -> SwarmTimeline:
        """GET /v1/timeline/sites: ourselves first."""
        journal = self._from.journal
        own = [span for span in journal.spans if span.end > since][-OWN_SPANS_SHOWN:]
        phases = [span for span in journal.phases if span.end > since]
        who = self._from.who
        mine = SiteTimeline(peer_id=who.peer_id, name=who.names.of(who.peer_id), is_self=True, spans=[*own, *phases])
        sites = (mine, *journal.others.since(since, who.names.of))
        now = float(journal.now())
        start = min((span.start for site in sites for span in site.spans), default=now)
        return SwarmTimeline(start=start, end=now, sites=sites)

    def alerts(self) -> list[ExplainedAlert]:
        """GET /v1/alerts."""
        found = []
        for alert in self._from.journal.alerts.values():
            kind = kind_of(alert.code)
            found.append(
                ExplainedAlert(
                    code=alert.code,
                    severity=alert.severity,
                    text=alert.text,
                    remedy=alert.remedy,
                    since=alert.since,
                    summary=kind.summary,
                    cause=kind.cause,
                    runbook=f"#{kind.code}",
                )
            )
        return found

    def past_alerts(self) -> list[PastAlert]:
        """GET /v1/alerts/history."""
        return list(self._from.journal.past_alerts)

    def recent_events(self, limit: int) -> list[dict[str, object]]:
        """The newest events, oldest first."""
        return [*self._from.journal.records][-limit:]

    def profile(self) -> ProfileStatus:
        """GET /v1/profile."""
        return self._from.site.status().profile

    def config(self) -> ResolvedConfig:
        """GET /v1/config, secrets masked."""
        opened = self._from.opened
        return ResolvedConfig(
            run_id=self._from.who.run_id,
            run_directory=str(opened.run_dir.path),
            run=masked_table(opened.manifest.model_dump(mode="json")),
            site=masked_table(opened.config.model_dump(mode="json")),
            warnings=(*opened.manifest.warnings(), *opened.config.api.warnings()),
        )

    async def log(self, before: int | None, limit: int) -> list[LogEntry]:
        """Entries of the log descending, below `before` (None: from the newest)."""
        log = self._from.ledger.log
        last = log.height if before is None else min(before, log.height)
        return await asyncio.to_thread(log_entries, log, range(last - 1, max(-1, last - 1 - limit), -1))

    async def log_entry(self, index: int) -> LogEntry | None:
        """One entry, or None if it is not in the log."""
        log = self._from.ledger.log
        found = await asyncio.to_thread(log_entries, log, range(index, index + 1)) if index < log.height else []
        return found[0] if found else None

    async def snapshots(self) -> list[Snapshot]:
        """GET /v1/snapshots, newest first."""
        return await asyncio.to_thread(snapshots_of, self._from.opened.run_dir.snapshots)

    def metrics(self) -> str:
        """GET /metrics."""
        return self._exposition().decode("utf-8")

    def listen(self, listener: Callable[[dict[str, object]], None]) -> None:
        """Every event from now on."""
        self._from.opened.events.listen(listener)


def snapshots_of(directory: Path) -> list[Snapshot]:
    """The snapshots in a run directory, newest first."""
    found = []
    for number in reversed(list_rounds(directory)):
        try:
            index = read_index(directory / str(number))
        except StoreError:
            continue  # pruned just now, or damaged: nobody can use it
        found.append(
            Snapshot(
                round=index.round,
                total_bytes=index.total_bytes,
                anchor_sha256=index.anchor_sha256,
                state_digest=index.state_digest,
                chain_head=index.chain_head,
                files=tuple(file.name for file in index.files),
            )
        )
    return found
