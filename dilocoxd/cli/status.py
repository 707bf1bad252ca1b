"""`dilocoxd status`: what a daemon does, what it waits for and why.

What asks the daemon is imported when it is asked: help answers without it.
"""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dilocoxd.cli.show import json_option, target_argument, wide_option

if TYPE_CHECKING:
    from dilocoxd.answers.status import Status


@click.command()
@target_argument
@wide_option
@json_option
def status(target: str | None, is_wide: bool, as_json: bool) -> int:
    """Show how it goes: state, speed, losses, time left, the other sites, alerts.

    Of the daemon at URL or of RUN_DIR; without either, of the run directory we are in, else http://127.0.0.1:8080.
    """
    from dilocoxd.answers.peers import Peer
    from dilocoxd.answers.status import Status
    from dilocoxd.cli.client import client_for
    from dilocoxd.cli.screens.layout import width
    from dilocoxd.cli.screens.status import status_screen

    client = client_for(target)
    if as_json:
        click.echo(
            json.dumps({"status": client.ask_json("/v1/status"), "peers": client.ask_json("/v1/peers")}, indent=1)
        )
    else:
        found = client.ask("/v1/status", Status)
        click.echo(status_screen(found, client.ask("/v1/peers", list[Peer]), width(is_wide=is_wide)))
        click.echo(f"\n{for_others(found, client.run_directory)}")
    return 0


def for_others(status: "Status", run_directory: str) -> str:
    """What others join with. `run_directory`: as it was given; empty if only the daemon's URL was."""
    from dilocoxd.store.rundir import RunDir

    if status.admission == "invite" and run_directory and not RunDir(Path(run_directory)).authority_key.exists():
        return "others are invited where an authority's key is; this site has none (dilocoxd members: who decides)"
    if status.admission == "invite":
        return f"invite others with: dilocoxd invite {shlex.quote(run_directory or 'RUN_DIR')}"
    return f"join with: dilocoxd join {status.join_address}"
