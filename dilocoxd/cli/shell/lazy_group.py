"""A command group that knows its commands by name and one sentence each, and imports one when it is called.

So `dilocoxd --help` answers before any configuration model, HTTP client or screen is imported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """A command by its name, its place (`module:attribute`) and the first sentence of its help, without the stop."""

    name: str
    place: str
    sentence: str

    def load(self) -> click.Command:
        """The command itself; imports its module."""
        from pkgutil import resolve_name

        command = resolve_name(self.place)
        assert isinstance(command, click.Command), f"{self.place} is no command"
        return command


class LazyGroup(click.Group):
    """A group of LazyCommands in their order; `commands` of click.Group stays empty."""

    def __init__(self, *arguments: Any, lazy: Sequence[LazyCommand], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lazy = {command.name: command for command in lazy}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click.Group."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click.Group."""
        known = self.lazy.get(cmd_name)
        return known.load() if known else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click.Group, which would look for similar names in `commands`."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as unknown:
            raise click.NoSuchCommand(unknown.command_name, possibilities=self.lazy, ctx=ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """See click.Group, which would import each command that it offers."""
        offered = [
            CompletionItem(name, help=command.sentence)
            for name, command in self.lazy.items()
            if name.startswith(incomplete)
        ]
        return offered + click.Command.shell_complete(self, ctx, incomplete)
