"""Prometheus metrics, made at scrape time from the same status that /v1/status serves, so the two cannot differ.

Names end with their unit (`_bytes`, `_seconds`, `_total`); docs/internals.md 6 has the status.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Status = Mapping[str, Any]

PLAIN: Final[tuple[tuple[Literal["gauge", "counter"], str, str, str], ...]] = (
    ("gauge", "dilocoxd_height", "height", "Committed outer steps on the own chain"),
    ("gauge", "dilocoxd_uptime_seconds", "uptime_s", "Time since the daemon started"),
    ("gauge", "dilocoxd_peers_known", "peers.known", "Peers ever heard of"),
    ("gauge", "dilocoxd_peers_live", "peers.live", "Peers that answer now, without this one"),
    ("gauge", "dilocoxd_peers_in_last_round", "peers.took_part_last_round", "Contributors of the newest entry"),
    ("gauge", "dilocoxd_phase_inner_step", "phase.inner_step", "Inner steps done in the current phase"),
    ("gauge", "dilocoxd_phase_inner_steps", "phase.inner_steps", "Inner steps the current phase is planned to have"),
    ("gauge", "dilocoxd_inner_step_seconds", "phase.step_seconds", "Duration of one inner step"),
    ("gauge", "dilocoxd_round_attempt", "round.attempt", "Attempt of the current round"),
    ("gauge", "dilocoxd_inner_loss", "losses.inner", "Training loss of the newest inner step"),
    ("gauge", "dilocoxd_validation_loss", "losses.validation", "Validation loss of the shared model"),
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

    def __init__(self, read_status: Callable[[], Status]) -> None:
        self._read_status = read_status

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
        yield from self._labelled(status)

    def _labelled(self, status: Status) -> Iterator[Metric]:
        info = GaugeMetricFamily("dilocoxd_info", "Always 1; who this is", labels=["peer_id", "run_id", "version"])
        info.add_metric([str(status.get(k, "")) for k in ("peer_id", "run_id", "version")], 1.0)
        yield info
        state = GaugeMetricFamily("dilocoxd_state", "Always 1; what the daemon does", labels=["state"])
        state.add_metric([str(status.get("state", "unknown"))], 1.0)
        yield state
        restarts = CounterMetricFamily("dilocoxd_worker_restarts", "Restarts of a worker", labels=["worker"])
        for worker, value in (status_value(status, "workers") or {}).items():
            restarts.add_metric([worker], float(value.get("restarts", 0)))
        yield restarts
        rejected = CounterMetricFamily("dilocoxd_input_rejected", "Bad input by kind, all peers", labels=["code"])
        counts: dict[str, int] = {}
        for kinds in (status_value(status, "bad_input") or {}).values():
            for code, count in kinds.items():
                counts[code] = counts.get(code, 0) + count
        for code, count in sorted(counts.items()):
            rejected.add_metric([code], float(count))
        yield rejected
        alerts = GaugeMetricFamily("dilocoxd_alert", "1 while an alert stands", labels=["code"])
        for alert in status_value(status, "alerts") or ():
            alerts.add_metric([str(alert.get("code", ""))], 1.0)
        yield alerts


class Metrics:
    """The registry behind /metrics."""

    def __init__(self, read_status: Callable[[], Status]) -> None:
        self.registry = CollectorRegistry()
        self._round_parts = Histogram(
            "dilocoxd_round_part_seconds",
            "Duration of the parts of a round",
            ["part"],
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600),
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(StatusCollector(read_status))

    def observe_round(self, times: Mapping[str, float]) -> None:
        """Add the durations of one committed round (`times` of /v1/rounds)."""
        for part in ROUND_PARTS:
            if part in times:
                self._round_parts.labels(part.removesuffix("_s")).observe(times[part])

    def exposition(self) -> bytes:
        """Body of /metrics."""
        return generate_latest(self.registry)
