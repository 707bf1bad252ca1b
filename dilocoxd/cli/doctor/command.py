"""`dilocoxd doctor`: looks for what usually goes wrong, and says what to do about each finding."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dilocoxd.answers.words import in_bytes
from dilocoxd.cli.client import ApiClient, client_for
from dilocoxd.cli.doctor.bundle import write_bundle
from dilocoxd.cli.doctor.findings import Finding
from dilocoxd.cli.doctor.machine import machine_findings
from dilocoxd.cli.doctor.site import site_findings
from dilocoxd.cli.exit_codes import DONE, FAILED
from dilocoxd.cli.screens.layout import Column, table
from dilocoxd.cli.shell.offers import run_directories
from dilocoxd.errors import ConfigError
from dilocoxd.store.rundir import open_run_dir

STYLES = {"ok": "green", "info": "dim", "warning": "yellow", "error": "bold red"}


def findings(directory: Path | None) -> Iterator[Finding]:
    """All findings: of the machine alone, or of a site on it."""
    if directory is None:
        yield from machine_findings(None, None, Path.cwd())
        return
    try:
        run_dir = open_run_dir(directory)
        manifest, site = run_dir.load()
    except ConfigError as error:
        yield Finding("config", "error", str(error))
        yield from machine_findings(None, None, directory if directory.is_dir() else Path.cwd())
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


@click.command()
@click.argument(
    "directory", metavar="[RUN_DIR]", required=False, type=click.Path(path_type=Path), shell_complete=run_directories
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    "--bundle",
    metavar="FILE.tar.gz",
    type=click.Path(path_type=Path),
    help="Write an archive for whoever helps: findings, configuration, events, logs, status. No key, token or text.",
)
def doctor(directory: Path | None, as_json: bool, bundle: Path | None) -> int:
    """Check this machine, and with RUN_DIR the site on it; each finding comes with its remedy.

    Exit code 1 if something stops the site from training with others.
    """
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
    elif sys.stdout.isatty():
        Console(highlight=False).print(_boxed(found))
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


def _boxed(found: Sequence[Finding]) -> Table:
    """The same for a terminal."""
    box = Table("check", "", "found")
    for finding in found:
        text = Text(finding.text)
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        box.add_row(finding.check, Text(finding.level, style=STYLES[finding.level]), text)
    return box
