"""`dilocoxd log`: arguments, options and help; the work is in cli/log.py."""

from pathlib import Path
from typing import Any

import click

from dilocoxd.cli.declared.options import known_run_argument
from dilocoxd.cli.shell.offers import run_directories
from dilocoxd.cli.show import wide_option


@click.group()
def log() -> None:
    """Read the chain of outer steps: show it, or (daemon stopped) verify it."""


@log.command()
@click.argument("target", metavar="[URL | RUN_DIR]", required=False, shell_complete=run_directories)
@click.option("--last", type=click.IntRange(min=0), default=20, show_default=True, help="Newest entries; 0 is all.")
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(**options: Any) -> int:
    """Show committed outer steps: who contributed what. Of a running daemon, or of a stopped one's RUN_DIR."""
    from dilocoxd.cli import log

    return log.show(**options)


@log.command()
@known_run_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(**options: Any) -> int:
    """Check every entry, payload and snapshot against its hash. Exit code 1 if anything is damaged.

    The daemon of RUN_DIR must be stopped: opening the log repairs what a crash left, which only one process may do.
    """
    from dilocoxd.cli import log

    return log.verify(**options)


@log.command()
@known_run_argument
@click.argument("folder", metavar="[FOLDER]", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evidence(**options: Any) -> int:
    """Sum again what an audit found false, from FOLDER (default: all that RUN_DIR keeps) and the log of RUN_DIR.

    Needs no daemon, and no trust in the site that kept the folder. Exit code 1 if a lie is proved.
    """
    from dilocoxd.cli import log

    return log.evidence(**options)
