"""`dilocoxd join`: arguments, options and help; the work is in cli/joining/join.py."""

import math
from typing import Any

import click

from dilocoxd.cli.declared.options import directory_option, force_option, site_options


def _time(_context: click.Context, _option: click.Parameter, value: float) -> float:
    """Refuse what no clock reaches, or has passed already."""
    if not 0 < value < math.inf:
        raise click.BadParameter(f"{value} is no time to wait")
    return value


@click.command()
@click.argument("addresses", metavar="[LINK...]", nargs=-1)
@click.option(
    "--timeout", "timeout_s", type=float, default=60.0, show_default=True, callback=_time,
    help="Seconds to find the run.",
)  # fmt: skip
@click.option("--no-run", is_flag=True, help="Only write the run directory.")
@click.option("--yes", is_flag=True, help="Do not ask; without a terminal nothing is asked.")
@directory_option
@force_option
@click.option("--init", "init_from", metavar="DIR", help="The files of weights that the run started from (or adapts).")
@site_options
def join(**options: Any) -> int:
    """Fetch a run from a peer, verify it, and train along, in the foreground.

    LINK is what `dilocoxd start` or `dilocoxd invite` printed; addresses of other sites may follow. An open run can be
    joined by the address of any site alone. Without LINK, lists the runs that sites on the local network tell of.

    Repeating the command goes on with the same run directory; options change its site.toml.
    """
    from dilocoxd.cli.joining import join

    return join.join(**options)
