"""Names of metrics are stable and documented; promtool accepts rules and dashboard, and they use metrics that exist."""

import json
import re
import subprocess
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dilocoxd.answers.rounds import RoundTimes
from dilocoxd.telemetry.alerts import KINDS
from dilocoxd.telemetry.metrics import LABELLED, PLAIN, Metrics
from tests.architecture.operations import PANELS
from tests.harness.synthetic.fake_view import FakeView

ROOT = Path(__file__).resolve().parents[3]
OPERATIONS = ROOT / "dilocoxd" / "shipped" / "monitoring"
STABLE = Path(__file__).with_name("metric_names.txt")


def promtool(*arguments: str, text: str | None = None) -> str:
    """Output of promtool (Debian package prometheus; .ci/run installs it). Fails if promtool finds anything wrong."""
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def exposition() -> str:
    view = FakeView(5)
    metrics = Metrics(view.status, view.peers)
    metrics.observe_round(RoundTimes(exchange_s=1.0))
    return metrics.exposition().decode()


def own_series() -> set[str]:
    """`name{label,...}` of everything of ours in a scrape."""
    families = text_string_to_metric_families(exposition())
    return {
        f"{sample.name}{{{','.join(sorted(sample.labels))}}}"
        for family in families
        for sample in family.samples
        if sample.name.startswith("dilocoxd_") and not sample.name.endswith("_created")
    }


def test_no_metric_was_renamed_or_dropped() -> None:
    stable = set(STABLE.read_text(encoding="ascii").split())
    assert stable, "the list is what dashboards of operators rely on"
    assert stable <= own_series(), "a metric or label is gone: keep it, or say so in the changelog and change the list"
    assert own_series() <= stable, "a new metric: add it to metric_names.txt"


def test_every_metric_is_documented() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for series in own_series():
        name = re.sub(r"_(bucket|sum|count)$", "", series.partition("{")[0])
        assert f"`{name}`" in text


def test_prometheus_likes_the_names() -> None:
    promtool("check", "metrics", text=exposition())


def test_prometheus_accepts_the_rules_and_there_is_one_for_each_alert() -> None:
    path = OPERATIONS / "alerts.yml"
    assert f"{len(KINDS)} rules found" in promtool("check", "rules", str(path))


def test_rules_fire_and_stop(tmp_path: Path) -> None:
    """promtool runs the rules on made-up series."""
    series = 'dilocoxd_alert{code="left_out", severity="warning", instance="a"}'
    alert = {
        "exp_labels": {"severity": "warning", "code": "left_out", "instance": "a"},
        "exp_annotations": {
            "summary": f"a: {next(k.summary for k in KINDS if k.code == 'left_out')}",
            "description": next(k.remedy for k in KINDS if k.code == "left_out"),
            "runbook": "docs/operations/runbook.md#left_out",
        },
    }
    down = {"eval_time": "1m", "alertname": "DilocoxdDaemonDown", "exp_alerts": []}
    tests = {
        "rule_files": [str(OPERATIONS / "alerts.yml")],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": [
                    {"series": series, "values": "0 0 1 1 0 0"},
                    {"series": 'up{job="dilocoxd", instance="a"}', "values": "0 0 0 0 0 0"},
                ],
                "alert_rule_test": [
                    {"eval_time": "0m", "alertname": "DilocoxdLeftOut", "exp_alerts": []},
                    {"eval_time": "1m30s", "alertname": "DilocoxdLeftOut", "exp_alerts": [alert]},
                    {"eval_time": "2m", "alertname": "DilocoxdLeftOut", "exp_alerts": []},
                    down,
                ],
            }
        ],
    }
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps(tests), encoding="utf-8")  # JSON is YAML
    promtool("test", "rules", str(path))


def test_dashboard_asks_for_metrics_that_exist(tmp_path: Path) -> None:
    board = json.loads((OPERATIONS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(board["panels"]) == len(PANELS) and len({panel["id"] for panel in board["panels"]}) == len(PANELS)
    names = {series.partition("{")[0] for series in own_series()} | {"process_resident_memory_bytes"}
    used = set(re.findall(r"\b(?:dilocoxd|process)_[a-z0-9_]+", " ".join(expressions)))
    assert used <= names, used - names
    rules = [{"record": f"panel:{index}", "expr": expr} for index, expr in enumerate(expressions)]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}), encoding="utf-8")
    promtool("check", "rules", str(path))


def test_tables_name_each_metric_once() -> None:
    names = [row[1] for row in PLAIN] + [row[1] for row in LABELLED]
    assert len(names) == len(set(names))
