"""Metrics: what a scrape shows of a status, before and after there is something to show."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from dilocoxd.telemetry.metrics import Metrics, status_value

STATUS: dict[str, Any] = {
    "peer_id": "QmA",
    "run_id": "demo-1",
    "version": "0.1.0",
    "state": "training",
    "height": 7,
    "phase": {"inner_step": 3, "inner_steps": 20, "step_seconds": 0.1},
    "totals": {"tokens": 1000, "bytes_sent": 5, "idle_s": 0.5, "train_s": 99.5},
    "losses": {"inner": 3.25, "validation": None},
    "peers": {"known": 3, "live": 2, "took_part_last_round": 2, "missed_last_round": 1},
    "workers": {"outer": {"restarts": 1}, "p2pd": {"restarts": 0}},
    "bad_input": {"QmB": {"malformed": 2}, "QmC": {"malformed": 1, "bad_hash": 4}},
    "alerts": [{"code": "left_out"}],
}


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {(s.name, tuple(s.labels.values())): s.value for f in families for s in f.samples}


def test_scrape_shows_the_status() -> None:
    found = samples(Metrics(lambda: STATUS))
    assert found["dilocoxd_height", ()] == 7
    assert found["dilocoxd_tokens_total", ()] == 1000
    assert found["dilocoxd_trainer_idle_seconds_total", ()] == 0.5
    assert found["dilocoxd_info", ("QmA", "demo-1", "0.1.0")] == 1
    assert found["dilocoxd_state", ("training",)] == 1
    assert found["dilocoxd_worker_restarts_total", ("outer",)] == 1
    assert found["dilocoxd_input_rejected_total", ("malformed",)] == 3
    assert found["dilocoxd_alert", ("left_out", "warning")] == 1
    assert found["dilocoxd_alert", ("disk_low", "critical")] == 0
    assert ("dilocoxd_validation_loss", ()) not in found
    assert found["process_resident_memory_bytes", ()] > 1_000_000


def test_scrape_before_there_is_a_status_works() -> None:
    found = samples(Metrics(dict))
    assert found["dilocoxd_state", ("training",)] == 0
    assert ("dilocoxd_height", ()) not in found


def test_round_parts_are_a_histogram() -> None:
    metrics = Metrics(lambda: STATUS)
    metrics.observe_round({"exchange_s": 0.3, "vote_s": 0.02, "unknown_s": 9.0})
    found = samples(metrics)
    assert found["dilocoxd_round_part_seconds_count", ("exchange",)] == 1
    assert found["dilocoxd_round_part_seconds_sum", ("vote",)] == 0.02
    assert ("dilocoxd_round_part_seconds_count", ("unknown",)) not in found


def test_missing_parts_of_a_status_are_none() -> None:
    assert status_value({"a": {"b": 1}}, "a.b") == 1
    assert status_value({"a": 1}, "a.b") is None
