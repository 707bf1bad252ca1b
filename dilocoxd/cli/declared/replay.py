"""`dilocoxd replay`: arguments, options and help; the work is in cli/replay.py."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("target", metavar="RUN_DIR|RECORDING", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--life", type=click.IntRange(min=1), default=1, show_default=True, help="1 is the daemon's newest start."
)
@click.option("--last", type=click.IntRange(min=0), default=0, help="Print the last events only; 0 is all.")
@click.option("--all", "with_idle", is_flag=True, help="Also events that changed nothing and ordered nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
def replay(**options: Any) -> int:
    """Play a recorded life of the round machine again: each event, what it ordered, and what it waited for.

    Exit code 1 if the machine ordered anything else than recorded.
    """
    from dilocoxd.cli import replay

    return replay.replay(**options)
