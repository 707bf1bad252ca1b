"""Composes what the HTTP API shows from the parts that know it (docs/internals.md section 6). Reads, never decides.

`waiting_for` is one sentence from the first part that waits, outermost first, so that the daemon can always say what
it waits for and why.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dilocoxd import __version__
from dilocoxd.daemon.ledger import Ledger
from dilocoxd.daemon.lifecycle import Lifecycle
from dilocoxd.daemon.opened import Opened
from dilocoxd.daemon.site_interface import Site, SiteLayout, WorkerStatus
from dilocoxd.daemon.state import Alert, Journal
from dilocoxd.ids import PeerId, RunId
from dilocoxd.rounds.core import RoundStatus
from dilocoxd.swarm.service import Swarm
from dilocoxd.telemetry.alerts import kind_of


@dataclass(frozen=True, slots=True)
class Who:
    """Names that never change while the daemon runs."""

    peer_id: PeerId
    run_id: RunId


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the values come from; each call is cheap."""

    lifecycle: Lifecycle
    journal: Journal
    ledger: Ledger
    site: Site
    peers: Callable[[], list[dict[str, Any]]]
    round_status: Callable[[], RoundStatus | None]
    recovery_text: Callable[[], str]
    swarm: Swarm
    p2pd: Callable[[], WorkerStatus]
    layout: Callable[[], SiteLayout | None]
    opened: Opened


def alert_json(alert: Alert) -> dict[str, Any]:
    """An alert that stands, as /v1/status shows it."""
    return {
        "code": alert.code,
        "severity": kind_of(alert.code).severity,
        "text": alert.text,
        "remedy": alert.remedy,
        "since": alert.since,
    }


class StatusView:
    """What is so now."""

    def __init__(self, who: Who, sources: Sources) -> None:
        self._who = who
        self._from = sources

    @property
    def is_healthy(self) -> bool:
        """The loop answers, and nothing has failed for good."""
        return self._from.lifecycle.state != "failed"

    @property
    def is_ready(self) -> bool:
        """The site trains."""
        return self._from.lifecycle.state == "training" and self._from.site.status().is_training

    def waiting_for(self) -> str:
        """Outermost first: start and end of the daemon, recovery, the site, the round, the network."""
        sources = self._from
        status = sources.round_status()
        candidates = (
            sources.lifecycle.waiting_for,
            sources.recovery_text(),
            sources.site.status().waiting_for,
            status.waiting_for if status is not None else "",
        )
        return next((text for text in candidates if text), "")

    def status(self) -> dict[str, Any]:
        """GET /v1/status."""
        sources, journal = self._from, self._from.journal
        site = sources.site.status()
        chain = sources.ledger.chain
        peers = sources.peers()
        inner, validation = journal.inner_losses.newest, journal.validation_losses.newest
        return {
            "peer_id": self._who.peer_id,
            "run_id": self._who.run_id,
            "version": __version__,
            "state": sources.lifecycle.state,
            "waiting_for": self.waiting_for(),
            "height": chain.height,
            "chain_head": chain.head.hex(),
            "anchor_sha256": site.anchor_sha256.hex() if site.anchor_sha256 else "",
            "state_digest": chain.state_digest.hex(),
            "started_at": journal.started_at,
            "uptime_s": max(0.0, journal.now() - journal.started_at),
            "addresses": list(sources.swarm.addresses()),
            "join_address": sources.swarm.join_address(),
            "phase": {
                "phase": site.phase,
                "inner_step": site.inner_step,
                "inner_steps": site.inner_steps,
                "global_step": site.global_step,
                "base_round": site.base_round,
                "step_seconds": site.step_seconds,
            },
            "round": self._round(),
            "totals": self._totals(site.idle_seconds, site.train_seconds, site.tokens),
            "losses": {
                "inner": inner[2] if inner else None,
                "validation": validation[2] if validation else None,
                "validation_round": validation[1] if validation else None,
            },
            "peers": {
                "known": len(peers),
                "live": sum(1 for peer in peers if peer["is_live"]),
                "took_part_last_round": len(chain.recent[-1]) if chain.recent else 0,
                "missed_last_round": chain.missed,
            },
            "strategy": {"inner_steps": chain.inner_steps, "lowrank_r": chain.lowrank_r},
            "payload": self._payload(),
            "workers": self._workers(site.workers),
            "bad_input": sources.swarm.guard.bad_input(),
            "alerts": [alert_json(alert) for alert in journal.alerts.values()],
        }

    def _payload(self) -> dict[str, Any] | None:
        layout = self._from.layout()
        if layout is None:
            return None
        payload_bytes = max(sum(map(sum, table)) for table in layout.payload_bytes.values())
        return {
            "parameters": layout.numel,
            "fp32_bytes": 4 * layout.numel,
            "payload_bytes": payload_bytes,
            "kept_from": self._from.ledger.log.payloads_kept_from,
            "compression_ratio": 4 * layout.numel / payload_bytes if payload_bytes else 0.0,
        }

    def _round(self) -> dict[str, Any]:
        status = self._from.round_status()
        if status is None:
            return {
                "round": self._from.ledger.chain.height,
                "attempt": 0,
                "state": "idle",
                "coordinator": "",
                "group": [],
                "observers": [],
                "waiting_for": self._from.lifecycle.waiting_for,
            }
        return {
            "round": status.round,
            "attempt": status.attempt,
            "state": status.state,
            "coordinator": status.coordinator or "",
            "group": list(status.group),
            "observers": list(status.observers),
            "waiting_for": status.waiting_for,
        }

    def _totals(self, idle_s: float, train_s: float, tokens: int) -> dict[str, Any]:
        totals = self._from.journal.totals
        return {
            "tokens": tokens,
            "inner_steps": totals.inner_steps,
            "contributions": len(self._from.ledger.own_rounds),
            "rounds_committed": self._from.ledger.chain.height,
            "bytes_sent": totals.bytes_sent,
            "bytes_received": totals.bytes_received,
            "idle_s": idle_s,
            "train_s": train_s,
            "attempts_failed": totals.attempts_failed,
        }

    def _workers(self, workers: Any) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for name, status in {**workers, "p2pd": self._from.p2pd()}.items():
            shown[name] = {"state": status.state, "restarts": status.restarts}
            if name == "trainer":
                shown[name] |= {"generation": status.generation, "pids": list(status.pids)}
            else:
                shown[name] |= {"pid": status.pids[0] if status.pids else 0}
        return shown
