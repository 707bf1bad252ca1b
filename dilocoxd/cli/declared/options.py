"""Arguments and options that several declared commands have."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from dilocoxd.cli.shell.offers import run_directories, settings

F = TypeVar("F", bound=Callable[..., Any])

run_argument = click.argument("run_directory", metavar="RUN_DIR", type=click.Path(path_type=Path))
known_run_argument = click.argument(
    "run_directory", metavar="RUN_DIR", type=click.Path(path_type=Path), shell_complete=run_directories
)


def _with(options: Sequence[Callable[[F], F]], function: F) -> F:
    """In this order in the help."""
    for option in reversed(options):
        function = option(function)
    return function


def directory_option(function: F) -> F:
    """Where a command makes its run directory."""
    return click.option(
        "--dir", "directory", metavar="DIR", help="Run directory; default: the run id, in this folder."
    )(function)


def force_option(function: F) -> F:
    """For commands that start a daemon."""
    return click.option("--force", is_flag=True, help="Start although memory or disk look too small.")(function)


def site_options(function: F) -> F:
    """The options that every command has that makes or changes a site.toml."""
    options = [
        click.option("--name", metavar="NAME", help="What this site is called, everywhere; default: the host's name."),
        click.option(
            "--host",
            metavar="ADDRESS",
            help="Listen here: IP or name of this machine; default 0.0.0.0.",
        ),
        click.option("--port", type=int, metavar="PORT", help="TCP port for other sites; default 31337, 0 a free one."),
        click.option(
            "--announce",
            multiple=True,
            metavar="ADDR",
            help="What others shall use: IP, name, HOST:PORT (repeatable).",
        ),
        click.option("--api-host", metavar="ADDRESS", help="HTTP API; default 127.0.0.1."),
        click.option("--api-port", type=int, metavar="PORT", help="HTTP API; default 8080."),
        click.option("--stages", type=int, metavar="N", help="Pipeline stages at this site; default 1."),
        click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where the stages compute; default cpu."),
        click.option("--cache", metavar="DIR", help="Tokenised corpora; default ~/.cache/dilocoxd."),
        click.option("--data", multiple=True, metavar="[NAME=]PATH", help="Own text or token store: its path here."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="SECTION.FIELD=VALUE",
            shell_complete=settings,
            help="Any other field (repeatable).",
        ),
    ]
    return _with(options, function)


def origin_options(function: F) -> F:
    """The options of `start` and `init` about the model."""
    options = [
        click.option("--init", "init_from", metavar="DIR", help="Start from the weights of a Hugging Face model."),
        click.option("--from", "parent", metavar="RUN_DIR[@ROUND]", help="Go on from a state of another run."),
        click.option("--module", "module", metavar="DIR", help="Own torch module and loop; see dilocoxd.describe."),
        click.option("--config", "config_from", metavar="FILE", help="From scratch, with the model of a config.json."),
        click.option("--model", "own", metavar="NAME", help="From scratch, with a model that an own package brings."),
        click.option("--tokenizer", "tokenizer_from", metavar="DIR", help="Use its tokenizer.json; default: --init's."),
        click.option("--lora", type=click.IntRange(1, 4096), metavar="RANK", help="Train only an adapter of --init."),
    ]
    return _with(options, function)
