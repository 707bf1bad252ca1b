"""Writes the documents that are made from code: `python -m tests.architecture.generated`."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path

from dilocoxd.config.fields import Section
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.telemetry.catalogue import event_types
from tests.architecture import operations

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTE = "Made by `python -m tests.architecture.generated`; edit the code instead.\n"


def events() -> str:
    """docs/events.md."""
    lines = ["# Events", "", NOTE, "## Events (`RUN_DIR/logs/events.jsonl`, one JSON object a line)", ""]
    lines += ["Every event has `time` (unix seconds), `event` and `level`, and its own fields:", ""]
    lines += ["| event | level | fields | meaning |", "|---|---|---|---|"]
    for kind in event_types():
        fields = ", ".join(f"`{f.name}`" for f in dataclasses.fields(kind))
        text = inspect.getdoc(kind) or ""
        meaning = "" if text.startswith(kind.__name__ + "(") else " ".join(text.split())
        lines.append(f"| `{kind.name}` | {kind.level} | {fields} | {meaning} |")
    return "\n".join(lines) + "\n"


def configuration() -> str:
    """docs/configuration.md."""
    lines = ["# Configuration", "", NOTE]
    for title, model in (("run.toml: the same at every site", Manifest), ("site.toml: this site only", SiteConfig)):
        lines += [f"## {title}", ""]
        for section, info in model.model_fields.items():
            kind = info.annotation
            assert isinstance(kind, type)
            assert issubclass(kind, Section)
            lines += [
                f"### [{section}]",
                "",
                inspect.getdoc(kind) or "",
                "",
                "| field | default | meaning |",
                "|---|---|---|",
            ]
            for name, field in kind.model_fields.items():
                default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
                text = (field.description or "").replace("|", "\\|")
                lines.append(f"| `{name}` | {default} | {text} |")
            lines.append("")
    return "\n".join(lines)


GENERATED: dict[str, Callable[[], str]] = {
    "events.md": events,
    "configuration.md": configuration,
    "metrics.md": operations.metrics,
    "operations/alerts.yml": operations.rules,
    "operations/grafana-dashboard.json": operations.grafana,
    "operations/runbook.md": operations.runbook,
}

if __name__ == "__main__":
    for file_name, make in GENERATED.items():
        (DOCS / file_name).write_text(make(), encoding="utf-8")
