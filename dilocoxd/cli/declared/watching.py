"""`dilocoxd watch | logs`: arguments, options and help; the work is in cli/watch.py and logs.py."""

from pathlib import Path
from typing import Any, get_args

import click

from dilocoxd.cli.shell.offers import run_directories
from dilocoxd.telemetry.catalogue import Level


@click.command()
@click.argument("target", metavar="[URL | RUN_DIR]", required=False)
@click.option("--seconds", type=float, default=0.0, help="End after this time; 0 is never.")
@click.option("--once", is_flag=True, help="End as soon as there is something to show.")
def watch(**options: Any) -> int:
    """Show the status of a daemon, live. Ctrl-C ends it."""
    from dilocoxd.cli import watch

    return watch.watch(**options)


@click.command()
@click.argument(
    "run_directory", metavar="[RUN_DIR]", default=".", type=click.Path(path_type=Path), shell_complete=run_directories
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "-n", "--last", type=click.IntRange(min=0), default=50, show_default=True, help="So many of the newest lines."
)
@click.option("--level", type=click.Choice(get_args(Level)), default="info", show_default=True, help="Least severity.")
def logs(**options: Any) -> int:
    """Show what happened at a site, newest last; details of each round with --level debug."""
    from dilocoxd.cli import logs

    return logs.logs(**options)
