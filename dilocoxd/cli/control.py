"""`dilocoxd pause | resume | leave | snapshot | log-level`: commands to a running daemon, over its API."""

import json
from typing import Any

import click

from dilocoxd.cli.client import TOKEN_VARIABLE, client_for
from dilocoxd.cli.show import json_option, target_argument

NOTE = f"The token comes from the run directory, or from {TOKEN_VARIABLE}."


def command(target: str | None, name: str, body: dict[str, Any], *, as_json: bool) -> int:
    """Send one command and say what came of it."""
    done = client_for(target).ask(f"/v1/control/{name}", body)
    click.echo(json.dumps(done) if as_json else done["text"])
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


@click.command("log-level", epilog=NOTE)
@click.argument("level", type=click.Choice(["debug", "info", "warning", "error"]))
@target_argument
@json_option
def log_level(level: str, target: str | None, as_json: bool) -> int:
    """Choose which events a running daemon shows on stderr or in the journal."""
    return command(target, "log-level", {"level": level}, as_json=as_json)
