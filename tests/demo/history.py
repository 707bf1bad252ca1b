"""Collects what each site's HTTP API shows, and keeps it beyond the death of the site."""

import threading
from dataclasses import dataclass, field
from typing import Any

from tests.harness.running.sites import SiteProcess

STATUS_EVERY_S = 0.25
HISTORY_EVERY_POLLS = 8
PAGE = 1000


def is_measured(row: dict[str, Any]) -> bool:
    """True for a round that the daemon lived through; False for one it knows from its log or from others."""
    return int(row.get("attempts") or 0) > 0


@dataclass
class SiteHistory:
    """Everything seen of one site. Rows are keyed, so that a restarted site adds to them instead of starting anew."""

    name: str
    status: dict[str, Any] = field(default_factory=dict)
    is_answering: bool = False
    rounds: dict[int, dict[str, Any]] = field(default_factory=dict)
    inner: dict[float, tuple[int, float]] = field(default_factory=dict)
    """unix -> (global step, loss)."""
    validation: dict[int, float] = field(default_factory=dict)
    """Height of the shared state -> validation loss."""
    spans: dict[tuple[str, float], dict[str, Any]] = field(default_factory=dict)
    heads: dict[int, str] = field(default_factory=dict)
    """Height -> chain head."""
    anchors: dict[str, set[str]] = field(default_factory=dict)
    """State digest -> anchor hashes reported with it (one, if all is well)."""
    past_lives: dict[str, float] = field(default_factory=dict)
    """Sums of the counters of daemons that have ended."""

    @property
    def height(self) -> int:
        return int(self.status.get("height") or 0)

    @property
    def state(self) -> str:
        return str(self.status.get("state") or "-") if self.is_answering else "no answer"

    def total(self, counter: str) -> float:
        """A counter of /v1/status `totals` over all lives of the site."""
        return self.past_lives.get(counter, 0.0) + float((self.status.get("totals") or {}).get(counter) or 0)

    def part(self, section: str) -> dict[str, Any]:
        """A section of the newest status, or {}."""
        return self.status.get(section) or {}

    def take_status(self, status: dict[str, Any]) -> None:
        """Remember a new status; a daemon whose uptime went back is a new life of the site."""
        if float(status.get("uptime_s") or 0) < float(self.status.get("uptime_s") or 0):
            for counter in ("tokens", "inner_steps", "bytes_sent", "bytes_received", "idle_s", "train_s"):
                self.past_lives[counter] = self.total(counter)
        self.status = status
        if status.get("chain_head"):
            self.heads[self.height] = str(status["chain_head"])
        if status.get("state_digest") and status.get("anchor_sha256"):
            self.anchors.setdefault(str(status["state_digest"]), set()).add(str(status["anchor_sha256"]))

    def take_history(self, rounds: Any, losses: Any, timeline: Any) -> None:
        """Remember answers of /v1/rounds, /v1/losses and /v1/timeline."""
        for row in rounds or []:
            index = int(row["round"])
            # A restarted daemon knows earlier rounds from its log alone; what was measured then must not be lost.
            if row.get("committed_at") and (is_measured(row) or index not in self.rounds):
                self.rounds[index] = row
        for unix, step, loss in (losses or {}).get("inner", []):
            self.inner[unix] = (step, loss)
        for _, height, loss in (losses or {}).get("validation", []):
            self.validation[int(height)] = float(loss)
        for span in timeline or []:
            self.spans[span["kind"], span["start"]] = span


class Watcher:
    """One thread per site that polls its API until `stop`."""

    def __init__(self, sites: list[SiteProcess]) -> None:
        self.histories = {site.name: SiteHistory(site.name) for site in sites}
        self._sites = {site.name: site for site in sites}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._poll, args=(site,), name=f"watch-{site.name}", daemon=True) for site in sites
        ]

    def start(self) -> None:
        """Begin to poll."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End polling; the histories stay as they are."""
        self._stop.set()
        for thread in self._threads:
            thread.join(15)

    def refresh_history(self, name: str) -> None:
        """Ask one site for its rounds, losses and timeline now (before it is stopped)."""
        self._fetch_history(self._sites[name], self.histories[name])

    def _poll(self, site: SiteProcess) -> None:
        history = self.histories[site.name]
        polls = 0
        while not self._stop.wait(STATUS_EVERY_S):
            status = site.status()
            history.is_answering = bool(status)
            if not status:
                continue
            history.take_status(status)
            polls += 1
            if polls % HISTORY_EVERY_POLLS == 0:
                self._fetch_history(site, history)

    @staticmethod
    def _fetch_history(site: SiteProcess, history: SiteHistory) -> None:
        # Two rows back: the newest known one may still have been growing when it was read.
        first = max(history.rounds, default=2) - 2
        rounds = site.get(f"/v1/rounds?from={max(0, first)}&limit={PAGE}")
        history.take_history(rounds, site.get("/v1/losses"), site.get("/v1/timeline"))
