"""Sentences for people: on a terminal broken between words at its width, else one line each, as written.

A terminal breaks a long line in the middle of a word. A pipe or a journal gets what a program can read: one line.
"""

import sys
from typing import Final

import click

from dilocoxd.answers.words import wrapped
from dilocoxd.cli.screens.layout import width
from dilocoxd.terminal import columns_of

INDENT: Final = 2


def tell(text: str, indent: int = INDENT) -> None:
    """Print `text` on stderr. What goes on below is `indent` further right."""
    columns = columns_of(sys.stderr)
    for line in text.split("\n"):
        for part in wrapped(line, columns, indent):
            click.echo(part, err=True)


def say(text: str, command: str = "") -> None:
    """Print `text` on stdout, and behind it `command`: whole, so that it can be copied, below where it has no room."""
    for line in lines_of(text, command):
        click.echo(line)


def lines_of(text: str, command: str) -> list[str]:
    """What `say` prints."""
    columns = width(is_wide=False)
    line = f"{text} {command}" if command else text
    if columns is None or len(line) <= columns:
        return [line]
    return [*wrapped(text.rstrip(), columns, INDENT), *([f"{' ' * INDENT}{command}"] if command else [])]
