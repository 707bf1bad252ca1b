"""Decides what each failure means for whoever called the command: one sentence on stderr and an exit code."""

import sys
from typing import NoReturn

import click

from dilocoxd import __version__
from dilocoxd.cli.check import check_config
from dilocoxd.cli.commands import init, join, run, start
from dilocoxd.cli.completion import completion
from dilocoxd.cli.control import leave, log_level, pause, resume, snapshot
from dilocoxd.cli.doctor import doctor
from dilocoxd.cli.exit_codes import FAILED, INTERRUPTED, epilog
from dilocoxd.cli.log import log
from dilocoxd.cli.replay import replay
from dilocoxd.cli.show import peers, rounds, snapshots
from dilocoxd.cli.status import status
from dilocoxd.cli.watch import watch
from dilocoxd.errors import ConfigError, DilocoxdError


@click.group(epilog=epilog(), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="dilocoxd")
def cli() -> None:
    """Train one language model on several sites that only the internet joins."""


for _command in (
    *(start, join, run, init, check_config),
    *(status, watch, peers, rounds, log, snapshots, doctor),
    *(pause, resume, leave, snapshot, log_level, replay, completion),
):
    cli.add_command(_command)


def main() -> NoReturn:
    """Entry point of `dilocoxd`."""
    try:
        sys.exit(cli.main(standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        click.echo(f"dilocoxd: {error}", err=True)
        sys.exit(error.exit_code)
    except DilocoxdError as error:
        click.echo(f"dilocoxd: {error}", err=True)
        sys.exit(FAILED)
