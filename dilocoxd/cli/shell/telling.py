"""Sentences for people on stderr: on a terminal broken between words at its width, else one line each, as written.

A terminal breaks a long line in the middle of a word. A pipe or a journal gets what a program can read: one line.
"""

import os
import sys
from typing import Final

import click

from dilocoxd.answers.words import wrapped

INDENT: Final = 2


def tell(text: str, indent: int = INDENT) -> None:
    """Print `text` on stderr. What goes on below is `indent` further right."""
    width = _width()
    for line in text.split("\n"):
        for part in wrapped(line, width, indent):
            click.echo(part, err=True)


def _width() -> int | None:
    """Of the terminal that stderr is; None: it is none."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):
        return None
