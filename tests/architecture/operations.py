"""Makes the documents for operators from the tables in the code: metrics, alert rules, Grafana dashboard, runbook.

`python -m tests.architecture.generated` writes them; test_generated.py says when they are out of date.
"""

import json
from typing import Any

from dilocoxd.cli.doctor.findings import FINDINGS
from dilocoxd.cli.exit_codes import EXIT_CODES
from dilocoxd.telemetry.alert_kind import AlertKind
from dilocoxd.telemetry.alerts import KINDS
from dilocoxd.telemetry.metrics import LABELLED, PLAIN

NOTE = "Made by `python -m tests.architecture.generated`; edit the code instead.\n"
RUNBOOK = "docs/operations/runbook.md"
SHORT = "{{ $labels.instance }}"

HEALTH = (
    (
        "`GET /healthz` answers 503, or nothing",
        "The loop or the supervisor no longer works, or the daemon is not running.",
        "A part has failed for good and the daemon is leaving; or the process is stopped, frozen or has no CPU.",
        "`systemctl status dilocoxd`, `journalctl -u dilocoxd -e`; the newest `alert.raised` names the part. Start it"
        " again: it resumes from snapshot and log.",
    ),
    (
        "`GET /readyz` answers 503",
        "The daemon is well but the site does not train (now). `detail` says what it waits for.",
        "Starting, joining, catching up, leaving, paused by an operator, or the trainers are being started again.",
        "Wait if it is starting or catching up; `dilocoxd resume` if it is paused; otherwise see the alerts.",
    ),
    (
        "state `joining` for minutes",
        "No peer of this run has answered yet.",
        "The addresses in network.bootstrap are dead or unreachable, the clock is wrong, or a firewall is in between.",
        "`dilocoxd doctor RUN_DIR`; the events `join.stage_failed` name address, stage and reason of each try.",
    ),
    (
        "state `catching_up` for long",
        "The site fetches a snapshot or entries, and applies them.",
        "A large model over a slow link, or donors that left meanwhile (it goes on with others).",
        "`dilocoxd status` shows what is being fetched; nothing is lost when it is restarted, downloads continue.",
    ),
)


def metrics() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        NOTE,
        "`GET /metrics`, Prometheus text format. Names and labels are stable: they change only",
    ]
    lines += ["with a new major version, and a test holds them against a list. Units are in the names.", ""]
    lines += ["| metric | kind | labels | meaning | source |", "|---|---|---|---|---|"]
    for kind, name, path, text in PLAIN:
        shown = name if kind == "gauge" else name + "_total"
        lines.append(f"| `{shown}` | {kind} | | {text}. | `{path}` of /v1/status |")
    for sort, name, labels, text in LABELLED:
        shown = name + "_total" if sort == "counter" else name
        lines.append(f"| `{shown}` | {sort} | {', '.join(f'`{label}`' for label in labels)} | {text}. | |")
    lines += ["", "`process_*` are those of the daemon's own process (CPU seconds, resident memory, open files).", ""]
    return "\n".join(lines)


def expression(kind: AlertKind) -> str:
    """The condition of a rule."""
    return kind.expr or f'dilocoxd_alert{{code="{kind.code}"}} == 1'


def rule_name(kind: AlertKind) -> str:
    """Name of the Prometheus alert."""
    return "Dilocoxd" + "".join(part.capitalize() for part in kind.code.split("_"))


def rules() -> str:
    """dilocoxd/shipped/monitoring/alerts.yml, rules for Prometheus."""
    lines = [f"# {NOTE}groups:", "  - name: dilocoxd", "    rules:"]
    for kind in KINDS:
        lines += [
            f"      - alert: {rule_name(kind)}",
            f"        expr: {json.dumps(expression(kind))}",
            f"        for: {kind.for_s}s",
            "        labels:",
            f"          severity: {kind.severity}",
            "        annotations:",
            f"          summary: {json.dumps(f'{SHORT}: {kind.summary}')}",
            f"          description: {json.dumps(kind.remedy)}",
            f"          runbook: {RUNBOOK}#{kind.code}",
        ]
    return "\n".join(lines) + "\n"


PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Loss", "none",
        (("dilocoxd_inner_loss", "inner {{instance}}"), ("dilocoxd_validation_loss", "shared {{instance}}")),
    ),
    ("Outer steps", "none", (("dilocoxd_height", "{{instance}}"),)),
    ("Tokens per second", "none", (("rate(dilocoxd_tokens_total[5m])", "{{instance}}"),)),
    (
        "Trainers idle", "percentunit",
        ((
            "rate(dilocoxd_trainer_idle_seconds_total[10m]) / (rate(dilocoxd_trainer_idle_seconds_total[10m])"
            " + rate(dilocoxd_trainer_busy_seconds_total[10m]))", "{{instance}}",
        ),),
    ),
    (
        "Parts of a round (mean)", "s",
        ((
            "sum by (part) (rate(dilocoxd_round_part_seconds_sum[15m]))"
            " / sum by (part) (rate(dilocoxd_round_part_seconds_count[15m]))", "{{part}}",
        ),),
    ),
    (
        "Payload traffic", "Bps",
        (("rate(dilocoxd_sent_bytes_total[5m])", "sent {{instance}}"),
         ("rate(dilocoxd_received_bytes_total[5m])", "received {{instance}}")),
    ),
    ("Compression", "none", (("dilocoxd_update_fp32_bytes / dilocoxd_payload_bytes", "{{instance}}"),)),
    (
        "H and r", "none",
        (("dilocoxd_strategy_inner_steps", "H {{instance}}"), ("dilocoxd_strategy_lowrank_r", "r {{instance}}")),
    ),
    (
        "Peers", "none",
        (("dilocoxd_peers_live", "live, seen by {{instance}}"),
         ("dilocoxd_peers_in_last_round", "in the last round, {{instance}}")),
    ),
    (
        "How far others are ahead", "none",
        (("max by (instance) (dilocoxd_peer_height) - on (instance) dilocoxd_height", "{{instance}}"),),
    ),
    ("Link speed to peers", "Bps", (("dilocoxd_peer_link_bytes_per_second", "{{instance}} to {{peer}}"),)),
    ("Failed attempts", "none", (("increase(dilocoxd_attempts_failed_total[15m])", "{{instance}}"),)),
    ("Restarts of workers", "none", (("increase(dilocoxd_worker_restarts_total[1h])", "{{instance}} {{worker}}"),)),
    ("Daemon memory", "bytes", (("process_resident_memory_bytes", "{{instance}}"),)),
    ("Alerts", "none", (("dilocoxd_alert == 1", "{{instance}} {{code}}"),)),
)  # fmt: skip


def panel(index: int) -> dict[str, Any]:
    """One panel of the dashboard; three in a row."""
    title, unit, targets = PANELS[index]
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "id": index + 1,
        "title": title,
        "type": "timeseries",
        "datasource": source,
        "gridPos": {"h": 8, "w": 8, "x": 8 * (index % 3), "y": 8 * (index // 3)},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": chr(65 + number), "expr": expr, "legendFormat": legend, "datasource": source}
            for number, (expr, legend) in enumerate(targets)
        ],
    }


def grafana() -> str:
    """dilocoxd/shipped/monitoring/grafana-dashboard.json."""
    datasource = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    board = {
        "uid": "dilocoxd",
        "title": "dilocoxd",
        "description": NOTE.strip(),
        "tags": ["dilocoxd"],
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [datasource]},
        "panels": [panel(index) for index in range(len(PANELS))],
    }
    return json.dumps(board, indent=1) + "\n"


def runbook() -> str:
    """docs/operations/runbook.md."""
    lines = [
        "# Runbook",
        "",
        NOTE,
        "What each alert, health condition, finding of `dilocoxd doctor` and exit code means,",
    ]
    lines += [
        "why it comes, and what to do. `dilocoxd status` shows standing alerts; `/v1/alerts` has the same texts.",
        "",
    ]
    lines += ["## Alerts", ""]
    for kind in KINDS:
        told = f"`{rule_name(kind)}`" + (f" after {kind.for_s} s" if kind.for_s else " at once")
        lines += [
            f'### <a id="{kind.code}"></a>{kind.code}', "",
            f"{kind.summary}", "",
            f"- **Severity**: {kind.severity}; in Prometheus {told}.",
            f"- **When**: {kind.condition}",
            f"- **Cause**: {kind.cause}",
            f"- **Remedy**: {kind.remedy}", "",
        ]  # fmt: skip
    lines += ["## Health conditions", "", "| condition | meaning | cause | remedy |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in HEALTH]
    lines += ["", "## Findings of `dilocoxd doctor`", "", "| check | what is checked | remedy |", "|---|---|---|"]
    lines += [f"| `{name}` | {text} | {remedy} |" for name, (text, remedy) in FINDINGS.items()]
    lines += ["", "## Exit codes", "", "| code | meaning | cause | remedy |", "|---|---|---|---|"]
    lines += [f"| {row.code} | {row.meaning} | {row.cause} | {row.remedy} |" for row in EXIT_CODES]
    return "\n".join(lines) + "\n"
