"""Decides how `dilocoxd --help` is laid out: commands in groups, in the order in which people need them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from dilocoxd.cli.shell.lazy_group import LazyCommand, LazyGroup

EXAMPLES: Final = (
    ("dilocoxd start small", "train here, and print the line for others"),
    (
        "dilocoxd join /ip4/IP/tcp/PORT/p2p/PEER/run/HASH/at/0/HEAD/key/INVITE",
        "train along; start prints the line",
    ),
    ("dilocoxd run small-0123456789abcdef", "go on after a stop"),
    ("dilocoxd status", "how it goes"),
    ("dilocoxd logs -f small-0123456789abcdef", "what happens, as it happens"),
    ("dilocoxd doctor small-0123456789abcdef", "why it does not"),
)

NAMES_MAX: Final = 30
"""Characters of the widest column of names, as click has it."""


@dataclass(frozen=True, slots=True)
class HelpGroup:
    """Commands under one title."""

    title: str
    commands: Sequence[LazyCommand]


class GroupedHelp(LazyGroup):
    """A group whose help has sections; the first sentence of each command's help, whole."""

    def __init__(self, *arguments: Any, sections: Sequence[HelpGroup], **options: Any) -> None:
        super().__init__(*arguments, lazy=[command for section in sections for command in section.commands], **options)
        self.sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click.Group."""
        names = min(NAMES_MAX, formatter.width // 3)  # the rest is for what they mean
        for section in self.sections:
            with formatter.section(section.title):
                formatter.write_dl([(command.name, command.sentence) for command in section.commands], col_max=names)
        with formatter.section("Examples"):
            formatter.write_dl([*EXAMPLES], col_max=names)
