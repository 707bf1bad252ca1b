"""`dilocoxd doctor | check-config`: arguments, options and help; the work is in cli/doctor/command.py and check.py."""

from pathlib import Path
from typing import Any

import click

from dilocoxd.cli.shell.offers import presets, run_directories


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
def doctor(**options: Any) -> int:
    """Check this machine, and with RUN_DIR the site on it; each finding comes with its remedy.

    Exit code 1 if something stops the site from training with others.
    """
    from dilocoxd.cli.doctor import command

    return command.doctor(**options)


@click.command("check-config")
@click.argument(
    "path",
    metavar="[PRESET | FILE | RUN_DIR]",
    type=click.Path(path_type=Path),
    required=False,
    shell_complete=presets,
)
@click.option("--explain", is_flag=True, help="Print every field with unit, range, effect and cost.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check_config(**options: Any) -> int:
    """Check run.toml, site.toml or a run directory without starting anything.

    Also tells what the run, or a preset, weighs: parameters, memory, disk, payload, seconds of an exchange. Exits 0 if
    the daemon would accept the files and 78 with one sentence per problem if not.
    """
    from dilocoxd.cli import check

    return check.check_config(**options)
