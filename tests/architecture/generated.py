"""Writes the documents that are made from code: `python -m tests.architecture.generated`."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path

from dilocoxd.config.fields import Section
from dilocoxd.config.manifest import Manifest
from dilocoxd.config.site import SiteConfig
from dilocoxd.config.writing import description
from dilocoxd.telemetry.kinds import event_types
from tests.architecture import operations, reference

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTE = "Made by `python -m tests.architecture.generated`; edit the code instead.\n"
ENVIRONMENT = (
    "Each field of site.toml can be given by a variable as well, which wins over the file:"
    " `DILOCOXD_NETWORK__PORT=31338`, `DILOCOXD_SITE__NAME=attic`. Fields of run.toml are"
    " given with `--set` when a run is created. `dilocoxd config show RUN_DIR` tells what holds and where it comes"
    " from; `dilocoxd config set RUN_DIR SECTION.FIELD=VALUE` changes site.toml.\n"
)


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
    lines = ["# Configuration", "", NOTE, ENVIRONMENT]
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
                text = description(field).replace("|", "\\|")
                lines.append(f"| `{name}` | {default} | {text} |")
            lines.append("")
    return "\n".join(lines)


GENERATED: dict[str, Callable[[], str]] = {
    "events.md": events,
    "configuration.md": configuration,
    "commands.md": reference.commands,
    "api.md": reference.api,
    "hardware.md": reference.hardware,
    "metrics.md": operations.metrics,
    "../dilocoxd/shipped/monitoring/alerts.yml": operations.rules,
    "../dilocoxd/shipped/monitoring/grafana-dashboard.json": operations.grafana,
    "operations/runbook.md": operations.runbook,
}

if __name__ == "__main__":
    for file_name, make in GENERATED.items():
        (DOCS / file_name).write_text(make(), encoding="utf-8")
