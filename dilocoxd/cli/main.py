"""Decides what each failure means for whoever called the command: one sentence a problem on stderr and an exit code."""

import contextlib
import io
import sys
from typing import NoReturn

import click

from dilocoxd import __version__
from dilocoxd.cli.exit_codes import FAILED, INTERRUPTED, epilog
from dilocoxd.cli.shell.command_table import GROUPS
from dilocoxd.cli.shell.grouped_help import GroupedHelp
from dilocoxd.cli.shell.helper_ends import end_by_exception
from dilocoxd.cli.shell.streams import open_closed_streams, silence_output
from dilocoxd.cli.shell.telling import tell
from dilocoxd.errors import ConfigError, DilocoxdError, of_the_system


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
    open_closed_streams()
    end_by_exception()
    try:
        code = cli.main(standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        _end(error.exit_code, shown.getvalue().rstrip("\n"))
    except click.Abort as aborted:
        # Whom Ctrl-C ends must die of the signal: a shell shows the same code, 130, but goes on with its loop after a
        # command that has made an exit code of it. sys.excepthook stays quiet (dilocoxd/cli/__init__.py).
        if isinstance(aborted.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        _end(error.exit_code, *(f"dilocoxd: {problem}" for problem in error.problems))
    except DilocoxdError as error:
        _end(FAILED, f"dilocoxd: {error}")
    except OSError as error:
        # Any command reads and writes files, and those of another user or of a full disk are no fault of ours.
        if error.filename is None:
            silence_output()
        refused = of_the_system(error)
        _end(refused.exit_code if isinstance(refused, ConfigError) else FAILED, f"dilocoxd: {refused}")


def _end(code: int, *sentences: str) -> NoReturn:
    """Exit with `code`, also where nobody can be told why."""
    with contextlib.suppress(OSError):
        for sentence in sentences:
            tell(sentence)
    sys.exit(code)
