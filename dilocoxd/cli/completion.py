"""`dilocoxd completion`: the line or script that makes a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

VARIABLE = "_DILOCOXD_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the completion script for a shell.

    bash: add `eval "$(dilocoxd completion bash)"` to ~/.bashrc. zsh: the same in ~/.zshrc with zsh.
    fish: dilocoxd completion fish > ~/.config/fish/completions/dilocoxd.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shells that it offers"
    click.echo(kind(context.find_root().command, {}, "dilocoxd", VARIABLE).source())
    return 0
