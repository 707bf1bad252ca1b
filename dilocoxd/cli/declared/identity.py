"""`dilocoxd id | identity`: arguments, options and help; the work is in cli/run_dir/identity.py."""

from typing import Any

import click

from dilocoxd.cli.declared.options import run_argument


@click.command("id")
@run_argument
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_id(**options: Any) -> int:
    """Print the peer id of a run directory."""
    from dilocoxd.cli.run_dir import identity

    return identity.show_id(**options)


@click.group()
def identity() -> None:
    """The key that tells who this site is."""


@identity.command()
@run_argument
def new(**options: Any) -> int:
    """Make a new identity: after a run directory was copied, or its key was lost or damaged.

    The old key, and what the site has not given to the run yet, are kept in a folder beside it. The shared model stays.
    """
    from dilocoxd.cli.run_dir import identity

    return identity.new(**options)
