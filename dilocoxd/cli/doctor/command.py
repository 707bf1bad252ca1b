"""`dilocoxd doctor`: looks for what usually goes wrong, and says what to do about each finding."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from dilocoxd.answers.words import in_bytes, wrapped
from dilocoxd.cli.client import ApiClient, client_for
from dilocoxd.cli.doctor.bundle import write_bundle
from dilocoxd.cli.doctor.findings import Finding
from dilocoxd.cli.doctor.machine import machine_findings
from dilocoxd.cli.doctor.site import site_findings
from dilocoxd.cli.exit_codes import DONE, FAILED
from dilocoxd.cli.screens.layout import GAP, Column, table, width
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import open_run_dir

COLOURS: Final = {"ok": "green", "info": None, "warning": "yellow", "error": "red"}
"""Of each level."""
TEXT_WIDTH_MIN: Final = 36
"""In a narrower column findings are not read: they stand below their names then."""


def findings(directory: Path | None) -> Iterator[Finding]:
    """All findings: of the machine alone, or of a site on it. Raises ConfigError where no site is."""
    if directory is None:
        yield from machine_findings(None, None, Path.cwd())
        return
    run_dir = open_run_dir(directory)
    try:
        manifest, site = run_dir.load()
    except ConfigError as error:
        yield Finding("config", "error", str(error))
        yield from machine_findings(None, None, directory)
        return
    warnings = [*manifest.warnings(), *site.api.warnings()]
    yield Finding("config", "warning" if warnings else "ok", "; ".join(warnings) or f"run {manifest.run_id}")
    yield from machine_findings(site, manifest, run_dir.path)
    yield from site_findings(run_dir.path, site, client_of(directory))


def client_of(directory: Path) -> ApiClient | None:
    """The API of a site; None if its configuration has none, or cannot be read."""
    try:
        return client_for(str(directory))
    except ConfigError:
        return None


def doctor(directory: Path | None, as_json: bool, bundle: Path | None) -> int:
    """Exit code of `dilocoxd doctor` (cli/declared/checking.py). Raises ConfigError."""
    if bundle is not None and directory is None:
        raise click.UsageError("--bundle is about a site; give its RUN_DIR")
    found = list(findings(directory))
    rows = [{"check": f.check, "level": f.level, "text": f.text, "remedy": f.remedy} for f in found]
    if bundle is not None and directory is not None:
        size = write_bundle(bundle, open_run_dir(directory), client_of(directory), rows)
        click.echo(f"{bundle}: {in_bytes(size)}; look into it before you send it", err=True)
    is_ill = any(finding.level == "error" for finding in found)
    if as_json:
        click.echo(json.dumps({"ok": not is_ill, "findings": rows}, indent=1))
    elif (columns := width(is_wide=False)) is not None:
        click.echo(screen(found, columns), color=False if "NO_COLOR" in os.environ else None)
    else:
        click.echo(_plain(found))
    return FAILED if is_ill else DONE


def _plain(found: Sequence[Finding]) -> str:
    """A line for each finding and one for its remedy, whole: grep and mails know no boxes."""
    columns = [
        Column("check", [one.check for one in found]),
        Column("", [one.level for one in found]),
        Column("found", [one.text for one in found]),
    ]
    return table(columns, None, [[f"-> {one.remedy}"] if one.remedy else [] for one in found])


def screen(found: Sequence[Finding], columns: int) -> str:
    """The same for a terminal of this width: broken between words, nothing cut.

    What does not fit beside its check and level stands below them.
    """
    names, levels = max(len(one.check) for one in found), max(map(len, COLOURS))
    beside = names + levels + 2 * len(GAP)
    lines = []
    for one in found:
        title = one.check.ljust(names) + GAP + _styled(one.level)
        texts = [one.text, *([f"-> {one.remedy}"] if one.remedy else [])]
        room = columns - beside
        if room >= TEXT_WIDTH_MIN and max(len(word) for text in texts for word in text.split()) <= room:
            first, *rest = (part for text in texts for part in wrapped(text, room))
            lines += [title + " " * (levels - len(one.level)) + GAP + first, *(" " * beside + part for part in rest)]
        else:
            lines += [title, *(GAP + part for text in texts for part in wrapped(text, columns - len(GAP)))]
    return "\n".join(lines)


def _styled(level: str) -> str:
    return click.style(level, fg=COLOURS[level], bold=True if level == "error" else None)
