"""`dilocoxd node`: arguments, options and help; the work is in cli/cluster/node.py."""

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("head", metavar="HEAD")
@click.option(
    "--key", required=True, type=click.Path(path_type=Path), help="The head's node.key, copied to this machine."
)
@click.option(
    "--dir", "directory", default="dilocoxd-node", show_default=True, type=click.Path(path_type=Path),
    help="Logs, and files of what runs here.",
)  # fmt: skip
@click.option(
    "--parts",
    default=None,
    type=click.IntRange(0, 63),
    help="Outer parts that may run here.  [default: 1, with --stages 0]",
)
@click.option(
    "--stages", default=0, show_default=True, type=click.IntRange(0, 1024),
    help="Pipeline stages whose trainers may run here.",
)  # fmt: skip
@click.option(
    "--announce", default="", metavar="ADDRESS",
    help="IP address of this machine as other sites see it, with :PORT if they use another port than the node."
    "  [default: its own]",
)  # fmt: skip
def node(**options: Any) -> None:
    """Run outer parts and trainers of a site whose daemon runs on another machine, in the foreground.

    HEAD is an address of that machine, with :PORT unless it is the default of cluster.port. The head says what runs
    here; nothing is configured on this machine. SIGTERM, Ctrl-C or closing the terminal ends it.
    """
    from dilocoxd.cli.cluster import node

    node.node(**options)
