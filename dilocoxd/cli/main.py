"""Decides what each failure means for whoever called the command: one sentence a problem on stderr and an exit code."""

import io
import sys
from typing import NoReturn

import click

from dilocoxd import __version__
from dilocoxd.cli.exit_codes import FAILED, INTERRUPTED, epilog
from dilocoxd.cli.shell.command_table import GROUPS
from dilocoxd.cli.shell.grouped_help import GroupedHelp
from dilocoxd.cli.shell.telling import tell
from dilocoxd.errors import ConfigError, DilocoxdError


@click.group(
    cls=GroupedHelp,
    sections=GROUPS,
    epilog=epilog(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="dilocoxd")
def cli() -> None:
    """Train one language model on several sites that only the internet joins."""


def main() -> NoReturn:
    """Entry point of `dilocoxd`."""
    try:
        sys.exit(cli.main(standalone_mode=False))
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        tell(shown.getvalue().rstrip("\n"))
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        for problem in error.problems:
            tell(f"dilocoxd: {problem}")
        sys.exit(error.exit_code)
    except DilocoxdError as error:
        tell(f"dilocoxd: {error}")
        sys.exit(FAILED)
