"""`dilocoxd peers | rounds | snapshots`: tables of what a running daemon knows, or the same as JSON."""

import json
import time
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dilocoxd.cli.client import client_for
from dilocoxd.cli.status import in_bytes, number, peer_table, short

target_argument = click.argument("target", metavar="[URL | RUN_DIR]", required=False)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def show(table: Table) -> None:
    """Print a table at the width of the terminal."""
    Console(highlight=False).print(table)


def clock(unix: Any) -> str:
    """Local time of day of a unix time, or a dash."""
    return time.strftime("%H:%M:%S", time.localtime(unix)) if unix else "-"


@click.command()
@target_argument
@json_option
def peers(target: str | None, as_json: bool) -> int:
    """Show the other sites: live, how far, how fast, when last seen."""
    found = client_for(target).ask("/v1/peers")
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        show(peer_table(found))
    return 0


@click.command()
@target_argument
@click.option("--last", type=click.IntRange(1, 1000), default=20, show_default=True, help="Newest rounds.")
@json_option
def rounds(target: str | None, last: int, as_json: bool) -> int:
    """Show the newest rounds: who took part, how long each part took, what failed."""
    found = client_for(target).ask(f"/v1/rounds?limit={last}")
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        show(round_table(found))
    return 0


def round_table(rows: list[Mapping[str, Any]]) -> Table:
    """Rounds, one line each; failures below theirs."""
    table = Table(
        "round", "committed", "sites", "we", "attempts", "gather", "exchange", "apply", "sent", "received", "idle"
    )
    for row in rows:
        times = row["times"]
        table.add_row(
            str(row["round"]),
            clock(row["committed_at"]),
            str(len(row["contributors"])),
            "yes" if row["is_contributor"] else "no",
            str(row["attempts"]),
            f"{number(times['gather_s'], '.1f')} s",
            f"{number(times['exchange_s'], '.1f')} s",
            f"{number(times['apply_s'], '.1f')} s",
            in_bytes(row["bytes_sent"]),
            in_bytes(row["bytes_received"]),
            f"{number(row['trainer_idle_s'], '.1f')} s",
        )
        for reason in row["failures"]:
            table.add_row("", "", "", "", "", "", reason)
    return table


@click.command()
@target_argument
@json_option
def snapshots(target: str | None, as_json: bool) -> int:
    """Show the snapshots on a site's disk."""
    found = client_for(target).ask("/v1/snapshots")
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return 0
    table = Table("outer step", "size", "anchor", "state", "chain head")
    for row in found:
        digests = (row["anchor_sha256"], row["state_digest"], row["chain_head"])
        table.add_row(str(row["round"]), in_bytes(row["total_bytes"]), *(short(text) for text in digests))
    show(table)
    return 0
