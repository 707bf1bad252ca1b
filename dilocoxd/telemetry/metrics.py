"""Prometheus metrics, made at scrape time from the same status that /v1/status serves, so the two cannot differ.

Names end with their unit (`_bytes`, `_seconds`, `_total`); docs/internals.md 6 has the status.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dilocoxd.telemetry.alerts import KINDS

Status = Mapping[str, Any]
Peers = Iterable[Mapping[str, Any]]

PLAIN: Final[tuple[tuple[Literal["gauge", "counter"], str, str, str], ...]] = (
    ("gauge", "dilocoxd_height", "height", "Committed outer steps on the own chain"),
    ("gauge", "dilocoxd_uptime_seconds", "uptime_s", "Time since the daemon started"),
    ("gauge", "dilocoxd_peers_known", "peers.known", "Peers ever heard of"),
    ("gauge", "dilocoxd_peers_live", "peers.live", "Peers that answer now, without this one"),
    ("gauge", "dilocoxd_peers_in_last_round", "peers.took_part_last_round", "Contributors of the newest entry"),
    (
        "gauge",
        "dilocoxd_peers_missed_in_last_round",
        "peers.missed_last_round",
        "By how many contributors the newest entry was short of the fullest recent one",
    ),
    ("gauge", "dilocoxd_phase_inner_step", "phase.inner_step", "Inner steps done in the current phase"),
    ("gauge", "dilocoxd_phase_inner_steps", "phase.inner_steps", "Inner steps the current phase is planned to have"),
    ("gauge", "dilocoxd_inner_step_seconds", "phase.step_seconds", "Duration of one inner step"),
    ("gauge", "dilocoxd_round_attempt", "round.attempt", "Attempt of the current round"),
    ("gauge", "dilocoxd_inner_loss", "losses.inner", "Training loss of the newest inner step"),
    ("gauge", "dilocoxd_validation_loss", "losses.validation", "Validation loss of the shared model"),
    ("gauge", "dilocoxd_strategy_inner_steps", "strategy.inner_steps", "Inner steps of a phase (H), as agreed"),
    (
        "gauge",
        "dilocoxd_strategy_lowrank_r",
        "strategy.lowrank_r",
        "Low rank of the payloads (r); 0 is none",
    ),
    ("gauge", "dilocoxd_payload_bytes", "payload.payload_bytes", "Size of one compressed contribution"),
    ("gauge", "dilocoxd_update_fp32_bytes", "payload.fp32_bytes", "Size of the same update uncompressed"),
    ("counter", "dilocoxd_tokens", "totals.tokens", "Tokens trained on at this site"),
    ("counter", "dilocoxd_inner_steps", "totals.inner_steps", "Inner steps done at this site"),
    ("counter", "dilocoxd_contributions", "totals.contributions", "Entries that contain a contribution of this site"),
    ("counter", "dilocoxd_rounds_committed", "totals.rounds_committed", "Rounds this site saw committed"),
    ("counter", "dilocoxd_attempts_failed", "totals.attempts_failed", "Attempts that were given up"),
    ("counter", "dilocoxd_sent_bytes", "totals.bytes_sent", "Payload bytes sent to peers"),
    ("counter", "dilocoxd_received_bytes", "totals.bytes_received", "Payload bytes received from peers"),
    ("counter", "dilocoxd_trainer_idle_seconds", "totals.idle_s", "Time in which trainers waited for the daemon"),
    ("counter", "dilocoxd_trainer_busy_seconds", "totals.train_s", "Time in which trainers trained"),
)

Labelled = tuple[Literal["gauge", "counter", "histogram"], str, tuple[str, ...], str]
API_REQUESTS: Final[Labelled] = ("counter", "dilocoxd_api_requests", ("status",), "HTTP requests by class of status")
API_REQUEST_SECONDS: Final[Labelled] = (
    "histogram", "dilocoxd_api_request_seconds", (), "Time from an HTTP request to its answer, event streams left out",
)  # fmt: skip
LABELLED: Final[tuple[Labelled, ...]] = (
    ("gauge", "dilocoxd_info", ("peer_id", "run_id", "version"), "Always 1; who this is"),
    ("gauge", "dilocoxd_state", ("state",), "1 for what the daemon does now, 0 for the other states"),
    ("counter", "dilocoxd_worker_restarts", ("worker",), "Restarts of a worker"),
    ("counter", "dilocoxd_input_rejected", ("code",), "Bad input by kind, all peers"),
    ("gauge", "dilocoxd_alert", ("code", "severity"), "1 while an alert stands, 0 otherwise"),
    ("gauge", "dilocoxd_peer_live", ("peer",), "1 while the peer answers"),
    ("gauge", "dilocoxd_peer_height", ("peer",), "Committed outer steps of the peer"),
    ("gauge", "dilocoxd_peer_link_bytes_per_second", ("peer",), "Measured speed of payloads sent to the peer"),
    ("histogram", "dilocoxd_round_part_seconds", ("part",), "Duration of the parts of a round"),
    API_REQUESTS,
    API_REQUEST_SECONDS,
)
STATES: Final = ("starting", "joining", "catching_up", "training", "leaving", "paused", "failed")
PEERS_SHOWN: Final = 200
"""More peers than this are not shown one by one: each is three time series."""

ROUND_PARTS: Final = ("gather_s", "exchange_s", "vote_s", "persist_s", "apply_s", "form_s", "reduce_s")


def status_value(status: Status, path: str) -> Any | None:
    """The value at a dotted path, or None where the status has none yet."""
    value: Any = status
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


class StatusCollector(Collector):
    """Turns the status into metric families whenever somebody scrapes."""

    def __init__(self, read_status: Callable[[], Status], read_peers: Callable[[], Peers]) -> None:
        self._read_status = read_status
        self._read_peers = read_peers

    def describe(self) -> list[Metric]:
        """Nothing: the status may not exist yet when the registry asks."""
        return []

    def collect(self) -> Iterator[Metric]:
        status = self._read_status()
        for kind, name, path, text in PLAIN:
            value = status_value(status, path)
            if isinstance(value, int | float):
                family = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
                yield family(name, text, value=float(value))
        yield filled("dilocoxd_info", {tuple(str(status.get(k, "")) for k in ("peer_id", "run_id", "version")): 1.0})
        yield filled("dilocoxd_state", {(state,): float(status.get("state") == state) for state in STATES})
        workers = status_value(status, "workers") or {}
        yield filled("dilocoxd_worker_restarts", {(w,): float(v.get("restarts", 0)) for w, v in workers.items()})
        counts: Counter[str] = Counter()
        for kinds in (status_value(status, "bad_input") or {}).values():
            counts.update(kinds)
        yield filled("dilocoxd_input_rejected", {(code,): float(count) for code, count in sorted(counts.items())})
        standing = {str(alert.get("code")) for alert in status_value(status, "alerts") or ()}
        yield filled("dilocoxd_alert", {(k.code, k.severity): float(k.code in standing) for k in KINDS if not k.expr})
        yield from self._peers()

    def _peers(self) -> Iterator[Metric]:
        peers = list(self._read_peers())[:PEERS_SHOWN]
        yield filled("dilocoxd_peer_live", {(p["peer_id"],): float(p["is_live"]) for p in peers})
        yield filled("dilocoxd_peer_height", {(p["peer_id"],): float(p["height"]) for p in peers})
        speeds = {(p["peer_id"],): float(p["link_bytes_per_s"]) for p in peers if p.get("link_bytes_per_s")}
        yield filled("dilocoxd_peer_link_bytes_per_second", speeds)


def filled(name: str, values: Mapping[Any, float]) -> Metric:
    """A labelled family of the table; `values` by tuples of label values."""
    kind, _, labels, text = next(row for row in LABELLED if row[1] == name)
    family = (GaugeMetricFamily if kind == "gauge" else CounterMetricFamily)(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


class Metrics:
    """The registry behind /metrics."""

    def __init__(self, read_status: Callable[[], Status], read_peers: Callable[[], Peers] = list) -> None:
        self.registry = CollectorRegistry()
        self._round_parts = Histogram(
            "dilocoxd_round_part_seconds",
            "Duration of the parts of a round",
            ["part"],
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600),
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(StatusCollector(read_status, read_peers))

    def observe_round(self, times: Mapping[str, float]) -> None:
        """Add the durations of one committed round (`times` of /v1/rounds)."""
        for part in ROUND_PARTS:
            if part in times:
                self._round_parts.labels(part.removesuffix("_s")).observe(times[part])

    def exposition(self) -> bytes:
        """Body of /metrics."""
        return generate_latest(self.registry)
