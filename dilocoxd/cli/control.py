"""`dilocoxd pause | resume | leave | snapshot | profile | ping | peers | adopt | log-level`: to a running daemon.

A group and its commands are one module's: the table of commands imports that module alone. What asks the daemon is
imported by whoever asks: help answers without it.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from dilocoxd.answers.limits import PROFILE_STEPS, PROFILE_STEPS_MAX
from dilocoxd.cli.shell.default_command import SHOW, DefaultCommand
from dilocoxd.cli.shell.telling import tell
from dilocoxd.cli.shell.token_variable import TOKEN_VARIABLE
from dilocoxd.cli.show import json_option, show_json, target_argument, wide_option
from dilocoxd.errors import PeerError

PING_S = 60.0
"""Some hellos and one payload."""
PROFILE_POLL_S: Final = 0.5
"""How far it is; the API keeps an answer for 0.2 s."""
FILES_SHOWN: Final = 4
NOTE = f"The token comes from the run directory, or from {TOKEN_VARIABLE}."


def command(target: str | None, name: str, body: Mapping[str, str], *, as_json: bool) -> int:
    """Send one command and say what came of it."""
    from dilocoxd.answers.site import CommandDone
    from dilocoxd.cli.client import client_for

    done = client_for(target).ask(f"/v1/control/{name}", CommandDone, body)
    click.echo(json.dumps(asdict(done)) if as_json else done.text)
    return 0


@click.command(epilog=NOTE)
@target_argument
@click.option("--reason", default="asked for by `dilocoxd pause`", show_default=True, help="Shown in the status.")
@json_option
def pause(target: str | None, reason: str, as_json: bool) -> int:
    """Stop training at the next inner step, until `dilocoxd resume` or a restart.

    The shared state goes on following the other sites, which do not wait for this one.
    """
    return command(target, "pause", {"reason": reason}, as_json=as_json)


@click.command(epilog=NOTE)
@target_argument
@json_option
def resume(target: str | None, as_json: bool) -> int:
    """Go on training after `dilocoxd pause`."""
    return command(target, "resume", {}, as_json=as_json)


@click.command(epilog=NOTE)
@target_argument
@json_option
def leave(target: str | None, as_json: bool) -> int:
    """Settle the round, say goodbye to the others and end the daemon."""
    return command(target, "leave", {}, as_json=as_json)


@click.command(epilog=NOTE)
@target_argument
@json_option
def snapshot(target: str | None, as_json: bool) -> int:
    """Write the shared state to disk now."""
    return command(target, "snapshot", {}, as_json=as_json)


@click.command(epilog=NOTE)
@target_argument
@click.option(
    "--steps", type=click.IntRange(1, PROFILE_STEPS_MAX), default=PROFILE_STEPS, show_default=True, help="Inner steps."
)
@json_option
def profile(target: str | None, steps: int, as_json: bool) -> int:
    """Record the next inner steps of every trainer process, to see where their time goes.

    Each writes a trace into RUN_DIR/profiles, where the newest 5 are kept. Numbers of the
    training do not change; recorded steps take a little longer.
    """
    from dilocoxd.answers.site import PROFILE_UNDER_WAY, CommandDone, ProfileStatus
    from dilocoxd.cli.client import client_for

    client = client_for(target)
    client.ask("/v1/control/profile", CommandDone, {"steps": steps})
    found, told = client.ask("/v1/profile", ProfileStatus), ""
    while found.state in PROFILE_UNDER_WAY:
        if found.text != told:
            told = found.text
            tell(told)
        time.sleep(PROFILE_POLL_S)
        found = client.ask("/v1/profile", ProfileStatus)
    if found.state != "written":
        raise PeerError(f"no profile was written: {found.text or 'the daemon was started again meanwhile'}")
    folder = Path(target or ".") / found.folder if Path(target or "./run.toml").exists() else f"RUN_DIR/{found.folder}"
    if as_json:
        click.echo(json.dumps({**asdict(found), "path": str(folder)}))
        return 0
    more = ", ..." if len(found.files) > FILES_SHOWN else ""
    click.echo(f"written: {folder} ({', '.join(found.files[:FILES_SHOWN])}{more}): {found.text}")
    click.echo("look at one: open it at https://ui.perfetto.dev, or in chrome://tracing; it stays on your machine")
    return 0


@click.command(epilog=NOTE)
@click.argument("site", metavar="SITE")
@target_argument
@json_option
def ping(site: str, target: str | None, as_json: bool) -> int:
    """Measure how another site is reached: directly or through a relay, latency, bandwidth.

    SITE is a name, short id or peer id as `dilocoxd peers` shows it.
    """
    from dilocoxd.answers.peers import Ping
    from dilocoxd.cli.client import client_for
    from dilocoxd.cli.screens.peers import ping_screen

    found = client_for(target).ask("/v1/control/ping", Ping, {"site": site}, timeout_s=PING_S)
    click.echo(json.dumps(asdict(found)) if as_json else ping_screen(found))
    return 0


@click.group(cls=DefaultCommand)
def peers() -> None:
    """Show all sites, this one first: what they do, how far, how fast, when last seen.

    With `connect ADDR` or `disconnect SITE`: change connections at run time.
    """


@peers.command(SHOW)
@target_argument
@wide_option
@json_option
def show_peers(target: str | None, is_wide: bool, as_json: bool) -> int:
    """Show them (what `dilocoxd peers` does)."""
    if as_json:
        return show_json(target, "/v1/peers")
    from dilocoxd.answers.peers import Peer
    from dilocoxd.answers.status import Status
    from dilocoxd.cli.client import client_for
    from dilocoxd.cli.screens.layout import width
    from dilocoxd.cli.screens.peers import peers_screen

    client = client_for(target)
    found = client.ask("/v1/status", Status)
    click.echo(peers_screen(found, client.ask("/v1/peers", list[Peer]), width(is_wide=is_wide)))
    return 0


@peers.command("connect", epilog=NOTE)
@click.argument("address", metavar="ADDR")
@target_argument
@json_option
def connect(address: str, target: str | None, as_json: bool) -> int:
    """Ask for peers at an address, from now on and until the daemon ends."""
    return command(target, "connect", {"address": address}, as_json=as_json)


@peers.command("disconnect", epilog=NOTE)
@click.argument("site", metavar="SITE")
@target_argument
@json_option
def disconnect(site: str, target: str | None, as_json: bool) -> int:
    """Close the connection to another site; both dial again by themselves."""
    return command(target, "disconnect", {"site": site}, as_json=as_json)


@click.command(epilog=NOTE)
@click.argument("branch", metavar="HEAD|SITE")
@target_argument
@json_option
def adopt(branch: str, target: str | None, as_json: bool) -> int:
    """Take another branch of the run, where the alert fork_below_final asks.

    HEAD is a chain head (its first 8 digits or more), SITE a site that stands on that branch.
    The work of this site's own entries beyond the fork is fed into later rounds. Who names a head
    of its own chain makes that final, and takes back an earlier choice.
    """
    return command(target, "adopt", {"target": branch}, as_json=as_json)


@click.command("log-level", epilog=NOTE)
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@target_argument
@json_option
def log_level(level: str, target: str | None, as_json: bool) -> int:
    """Choose which events a running daemon shows on stderr or in the journal."""
    return command(target, "log-level", {"level": level}, as_json=as_json)
