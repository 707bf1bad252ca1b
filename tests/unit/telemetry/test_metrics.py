"""Metrics: what a scrape shows of a status, before and after there is something to show."""

from prometheus_client.parser import text_string_to_metric_families

from dilocoxd.answers.rounds import RoundTimes
from dilocoxd.answers.status import WorkerProcess
from dilocoxd.telemetry.metrics import Metrics, status_value
from tests.harness.shapes import changed
from tests.harness.synthetic.fake_view import FakeView

STATUS = changed(
    FakeView(7).status(), peer_id="QmA", run_id="demo-1", version="0.1.0", state="training", totals__tokens=1000,
    totals__idle_s=0.5, losses__validation=None,
    bad_input={"QmB": {"malformed": 2}, "QmC": {"malformed": 1, "bad_hash": 4}},
    workers={"outer": WorkerProcess(state="running", restarts=1, pid=1)},
)  # fmt: skip


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


def test_scrape_before_the_model_is_described_works() -> None:
    found = samples(Metrics(lambda: changed(STATUS, state="starting", payload=None)))
    assert found["dilocoxd_state", ("training",)] == 0
    assert found["dilocoxd_state", ("starting",)] == 1
    assert ("dilocoxd_payload_bytes", ()) not in found


def test_round_parts_are_a_histogram() -> None:
    metrics = Metrics(lambda: STATUS)
    metrics.observe_round(RoundTimes(exchange_s=0.3, vote_s=0.02))
    found = samples(metrics)
    assert found["dilocoxd_round_part_seconds_count", ("exchange",)] == 1
    assert found["dilocoxd_round_part_seconds_sum", ("vote",)] == 0.02


def test_missing_parts_of_a_status_are_none() -> None:
    assert status_value(STATUS, "totals.tokens") == 1000
    assert status_value(changed(STATUS, payload=None), "payload.fp32_bytes") is None
