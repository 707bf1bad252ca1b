"""`dilocoxd config`: arguments, options and help; the work is in cli/configuration/command.py."""

from typing import Any

import click

from dilocoxd.cli.declared.options import known_run_argument
from dilocoxd.cli.shell.offers import settings


@click.group()
def config() -> None:
    """Show what holds at a site and where each value comes from, or change its site.toml."""


@config.command("show")
@known_run_argument
@click.argument("names", metavar="[SECTION | SECTION.FIELD]...", nargs=-1)
@click.option("--changed", "is_changed", is_flag=True, help="Only what is not as by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_config(**options: Any) -> int:
    """Print every field with its value and origin: run.toml, site.toml, a variable, or the default."""
    from dilocoxd.cli.configuration import command

    return command.show_config(**options)


@config.command("set")
@known_run_argument
@click.argument("assignments", metavar="SECTION.FIELD=VALUE...", nargs=-1, required=True, shell_complete=settings)
def set_config(**options: Any) -> int:
    """Change site.toml; comments and all other lines stay. The daemon reads it when it starts."""
    from dilocoxd.cli.configuration import command

    return command.set_config(**options)
