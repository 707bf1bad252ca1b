"""A group of commands that does one of them when none is named: `dilocoxd peers RUN_DIR` is `peers show RUN_DIR`."""

from typing import Final

import click

SHOW: Final = "show"


class DefaultCommand(click.Group):
    """What is no name of a command is the first argument of `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click.Group."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [SHOW, *args]
        return super().parse_args(ctx, args)
