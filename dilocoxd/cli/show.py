"""`dilocoxd rounds | snapshots`: tables of what a running daemon knows, or the same as JSON.

What asks the daemon is imported by whoever asks: help answers without it.
"""

import json

import click

from dilocoxd.cli.shell.offers import run_directories

target_argument = click.argument("target", metavar="[URL | RUN_DIR]", required=False, shell_complete=run_directories)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
wide_option = click.option("--wide", "is_wide", is_flag=True, help="All columns, as in a pipe.")


def show_json(target: str | None, path: str) -> int:
    """Print an answer as it came."""
    from dilocoxd.cli.client import client_for

    click.echo(json.dumps(client_for(target).ask_json(path), indent=1))
    return 0


@click.command()
@target_argument
@click.option("--last", type=click.IntRange(1, 1000), default=20, show_default=True, help="Newest rounds.")
@wide_option
@json_option
def rounds(target: str | None, last: int, is_wide: bool, as_json: bool) -> int:
    """Show the newest rounds: who took part, how long each part took, what failed."""
    path = f"/v1/rounds?limit={last}"
    if as_json:
        return show_json(target, path)
    from dilocoxd.answers.rounds import RoundRow
    from dilocoxd.cli.client import client_for
    from dilocoxd.cli.screens.layout import width
    from dilocoxd.cli.screens.rounds import rounds_screen

    click.echo(rounds_screen(client_for(target).ask(path, list[RoundRow]), width(is_wide=is_wide)))
    return 0


@click.command()
@target_argument
@wide_option
@json_option
def snapshots(target: str | None, is_wide: bool, as_json: bool) -> int:
    """Show the snapshots on a site's disk."""
    if as_json:
        return show_json(target, "/v1/snapshots")
    from dilocoxd.answers.site import Snapshot
    from dilocoxd.cli.client import client_for
    from dilocoxd.cli.screens.layout import width
    from dilocoxd.cli.screens.rounds import snapshots_screen

    click.echo(snapshots_screen(client_for(target).ask("/v1/snapshots", list[Snapshot]), width(is_wide=is_wide)))
    return 0
