"""Prometheus metrics, made at scrape time from the same status that /v1/status serves, so the two cannot differ.

Names end with their unit (`_bytes`, `_seconds`, `_total`); docs/internals.md 6 has the status.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, Literal, get_args

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dilocoxd.answers.fields import DaemonState
from dilocoxd.answers.peers import Peer
from dilocoxd.answers.rounds import RoundTimes
from dilocoxd.answers.status import Status
from dilocoxd.telemetry.alerts import KINDS

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
    ("gauge", "dilocoxd_tokens_per_second", "progress.tokens_per_s", "Tokens trained on per second at this site"),
    ("gauge", "dilocoxd_learning_rate", "progress.learning_rate", "Learning rate of the newest inner step"),
    ("gauge", "dilocoxd_gradient_norm", "progress.gradient_norm", "Norm of the newest gradient, before clipping"),
    ("gauge", "dilocoxd_model_flops_per_second", "progress.model_flops_per_s", "Useful arithmetic of this site"),
    ("gauge", "dilocoxd_mfu_ratio", "progress.mfu", "Useful arithmetic, as part of what the devices could"),
    ("gauge", "dilocoxd_data_seconds", "progress.data_s", "Time that an inner step takes to read its batch"),
    ("gauge", "dilocoxd_bubble_ratio", "progress.bubble", "Part of an inner step in which stages wait for each other"),
    ("gauge", "dilocoxd_memory_bytes", "progress.memory_bytes", "Main memory of all processes of this site"),
    ("counter", "dilocoxd_skipped_steps", "progress.skipped_steps", "Inner steps with a gradient that was not finite"),
    ("counter", "dilocoxd_tokens", "totals.tokens", "Tokens trained on at this site"),
    ("counter", "dilocoxd_inner_steps", "totals.inner_steps", "Inner steps done at this site"),
    ("counter", "dilocoxd_contributions", "totals.contributions", "Entries that contain a contribution of this site"),
    ("counter", "dilocoxd_rounds_committed", "totals.rounds_committed", "Rounds this site saw committed"),
    ("counter", "dilocoxd_attempts_failed", "totals.attempts_failed", "Attempts that were given up"),
    ("counter", "dilocoxd_sent_bytes", "totals.bytes_sent", "Payload bytes sent to peers"),
    ("counter", "dilocoxd_received_bytes", "totals.bytes_received", "Payload bytes received from peers"),
    ("counter", "dilocoxd_audits_made", "audits.made", "Results of others that were summed again and compared"),
    ("counter", "dilocoxd_audits_false", "audits.proofs", "Results of others that were found false"),
    ("counter", "dilocoxd_audits_received_bytes", "audits.bytes_received", "Payload bytes fetched for audits"),
    ("counter", "dilocoxd_audits_shown", "audits.shown", "Audits of results that other sites told are false"),
    ("counter", "dilocoxd_audits_unanswered", "audits.unanswered", "Audits that a contributor did not answer"),
    ("counter", "dilocoxd_audits_undecided", "audits.undecided", "Audits that this site could not finish"),
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
    ("gauge", "dilocoxd_rank_memory_bytes", ("rank",), "Memory of a trainer process: of its GPU, or main memory"),
    ("gauge", "dilocoxd_peer_live", ("peer",), "1 while the peer answers"),
    ("gauge", "dilocoxd_peer_height", ("peer",), "Committed outer steps of the peer"),
    ("gauge", "dilocoxd_peer_link_bytes_per_second", ("peer",), "Measured speed of payloads sent to the peer"),
    ("histogram", "dilocoxd_round_part_seconds", ("part",), "Duration of the parts of a round"),
    API_REQUESTS,
    API_REQUEST_SECONDS,
)
STATES: Final = get_args(DaemonState)
PEERS_SHOWN: Final = 200
"""More peers than this are not shown one by one: each is three time series."""


def status_value(status: Status, path: str) -> object:
    """The value at a dotted path, or None where the status has none yet."""
    value: object = status
    for part in path.split("."):
        if value is None:
            return None
        value = getattr(value, part)
    return value


class StatusCollector(Collector):
    """Turns the status into metric families whenever somebody scrapes."""

    def __init__(self, read_status: Callable[[], Status], read_peers: Callable[[], Iterable[Peer]]) -> None:
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
        yield filled("dilocoxd_info", {(status.peer_id, status.run_id, status.version): 1.0})
        yield filled("dilocoxd_state", {(state,): float(status.state == state) for state in STATES})
        memory = enumerate(status.progress.rank_memory_bytes)
        yield filled("dilocoxd_rank_memory_bytes", {(str(rank),): float(held) for rank, held in memory})
        yield filled("dilocoxd_worker_restarts", {(w,): float(v.restarts) for w, v in status.workers.items()})
        counts: Counter[str] = Counter()
        for kinds in status.bad_input.values():
            counts.update(kinds)
        yield filled("dilocoxd_input_rejected", {(code,): float(count) for code, count in sorted(counts.items())})
        standing = {alert.code for alert in status.alerts}
        yield filled("dilocoxd_alert", {(k.code, k.severity): float(k.code in standing) for k in KINDS if not k.expr})
        yield from self._peers()

    def _peers(self) -> Iterator[Metric]:
        peers = list(self._read_peers())[:PEERS_SHOWN]
        yield filled("dilocoxd_peer_live", {(p.peer_id,): float(p.is_live) for p in peers})
        yield filled("dilocoxd_peer_height", {(p.peer_id,): float(p.height) for p in peers})
        speeds = {(p.peer_id,): p.link_bytes_per_s for p in peers if p.link_bytes_per_s}
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

    def __init__(self, read_status: Callable[[], Status], read_peers: Callable[[], Iterable[Peer]] = tuple) -> None:
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

    def observe_round(self, times: RoundTimes) -> None:
        """Add the durations of one committed round."""
        for part in fields(times):
            if (seconds := getattr(times, part.name)) is not None:
                self._round_parts.labels(part.name.removesuffix("_s")).observe(seconds)

    def exposition(self) -> bytes:
        """Body of /metrics."""
        return generate_latest(self.registry)
