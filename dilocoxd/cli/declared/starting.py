"""`dilocoxd start | init | run`: arguments, options and help; the work is in cli/commands.py."""

from typing import Any

import click

from dilocoxd.cli.declared.options import (
    directory_option,
    force_option,
    known_run_argument,
    origin_options,
    site_options,
)
from dilocoxd.cli.shell.offers import presets


@click.command()
@click.argument("target", metavar="[PRESET | run.toml]", required=False, shell_complete=presets)
@click.option("--no-run", is_flag=True, help="Only write the run directory.")
@directory_option
@force_option
@origin_options
@site_options
def start(**options: Any) -> int:
    """Create a run and train it here, in the foreground.

    Prints the line with which other machines join. PRESET is tiny (0.05 million parameters, for
    a try), demo (0.5 million) or small (32 million), or one of them with a strategy
    (small:sparseloco); any field can be changed with --set. --from goes on from a state of
    another run: a fork, or the way on after its end.
    """
    from dilocoxd.cli import commands

    return commands.start(**options)


@click.command()
@click.argument("target", metavar="[PRESET | run.toml]", required=False, shell_complete=presets)
@directory_option
@origin_options
@site_options
def init(**options: Any) -> int:
    """Create a run directory without starting it (start it with `dilocoxd run`).

    It reads and makes no text of a preset, and so cannot name it by its hash: for a run that others shall join, take
    `dilocoxd start --no-run`.
    """
    from dilocoxd.cli import commands

    return commands.init(**options)


@click.command()
@known_run_argument
@force_option
@site_options
def run(**options: Any) -> int:
    """Train an existing run directory, in the foreground. This is what a service runs.

    Options change site.toml of the run directory, for this start and the next ones.
    """
    from dilocoxd.cli import commands

    return commands.run(**options)
