"""Sentences for people on stderr: on a terminal broken between words at its width, else one line each, as written.

A terminal breaks a long line in the middle of a word. A pipe or a journal gets what a program can read: one line.
"""

import sys
from typing import Final

import click

from dilocoxd.answers.words import wrapped
from dilocoxd.terminal import columns_of

INDENT: Final = 2


def tell(text: str, indent: int = INDENT) -> None:
    """Print `text` on stderr. What goes on below is `indent` further right."""
    width = columns_of(sys.stderr)
    for line in text.split("\n"):
        for part in wrapped(line, width, indent):
            click.echo(part, err=True)
