"""`dilocoxd invite | members | evict`: arguments, options and help; the work is in cli/run_dir/members.py."""

from pathlib import Path
from typing import Any

import click

from dilocoxd.cli.declared.options import run_argument
from dilocoxd.cli.show import json_option, target_argument, wide_option
from dilocoxd.wire.admission import ROLES, USES_MAX


@click.command()
@run_argument
@click.option("--expires", default="7d", show_default=True, help="How long it admits sites: 30m, 12h, 7d.")
@click.option("--uses", type=click.IntRange(1, USES_MAX), default=1, show_default=True, help="Sites that it admits.")
@click.option(
    "--role", type=click.Choice(ROLES), default="contribute", show_default=True,
    help="What who joins may do: take part, or only follow the run (observe).",
)  # fmt: skip
@click.option("--signed", type=click.Path(path_type=Path), help="A request that enough authorities have signed.")
def invite(**options: Any) -> int:
    """Make a link with which others join the run.

    Needs an authority's key in RUN_DIR. Where several authorities must sign, a file is written for them to sign with
    `dilocoxd authority sign`; then the link is made with --signed FILE.
    """
    from dilocoxd.cli.run_dir import members

    return members.invite(**options)


@click.command()
@target_argument
@wide_option
@json_option
def members(**options: Any) -> int:
    """Show who belongs to the run, by which invite, and who was evicted."""
    from dilocoxd.cli.run_dir import members

    return members.members(**options)


@click.command()
@click.argument("site", metavar="SITE")
@run_argument
@click.option("--signed", type=click.Path(path_type=Path), help="A request that enough authorities have signed.")
@click.option("--vote", is_flag=True, help="Vote as a member, though an authority's key is here.")
def evict(**options: Any) -> int:
    """End the membership of a site; its invite is closed, and only a new one lets it in again.

    SITE is a name or peer id as `dilocoxd members` shows it. The daemon of RUN_DIR must run: it tells the others.
    Without an authority's key this site votes: two thirds of those who contributed lately evict a member.
    """
    from dilocoxd.cli.run_dir import members

    return members.evict(**options)
