"""`dilocoxd status`: what a daemon does, what it waits for and why."""

import json
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from dilocoxd.cli.client import client_for
from dilocoxd.errors import PeerError


def short(text: str, length: int = 12) -> str:
    """The end of a peer id or hash: its start is the same for all."""
    return text if len(text) <= length else "~" + text[-length:]


def in_bytes(count: float) -> str:
    """A number of bytes for people.

    >>> in_bytes(1536)
    '1.5 KiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(value: Any, form: str = ".3f") -> str:
    """A figure, or a dash while there is none."""
    return format(value, form) if isinstance(value, int | float) else "-"


def progress(phase: Mapping[str, Any]) -> str:
    """Where the trainers are."""
    if phase.get("phase") is None:
        return "none yet"
    return f"{phase.get('phase')}: {phase.get('inner_step')} of {phase.get('inner_steps')} inner steps"


def retention(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which entries of the log have lost their payloads; nothing while all have them."""
    first = (status.get("payload") or {}).get("kept_from") or 0
    return [("log", f"payloads of entries {first} and later; below it entries with hashes and votes")] if first else []


def facts(status: Mapping[str, Any]) -> Table:
    """The daemon itself, one line a fact."""
    phase, round_, totals = status.get("phase") or {}, status.get("round") or {}, status.get("totals") or {}
    losses, peers = status.get("losses") or {}, status.get("peers") or {}
    busy = (totals.get("train_s") or 0.0) + (totals.get("idle_s") or 0.0)
    idle = f"{(totals.get('idle_s') or 0.0) / busy:.1%} of the time" if busy else "-"
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    rows = [
        ("run", status.get("run_id")),
        ("peer", status.get("peer_id")),
        ("state", status.get("state")),
        ("waits for", status.get("waiting_for") or "nothing"),
        *retention(status),
        ("outer step", f"{status.get('height')}  head {short(status.get('chain_head') or '-')}"),
        ("anchor", short(status.get("anchor_sha256") or "-")),
        ("phase", progress(phase)),
        ("round", f"{round_.get('round')}: {round_.get('state')}, attempt {round_.get('attempt')}"),
        ("loss", f"inner {number(losses.get('inner'))}, validation {number(losses.get('validation'))}"),
        ("tokens", f"{totals.get('tokens') or 0:,}"),
        ("contributions", f"{totals.get('contributions')} in {totals.get('rounds_committed')} committed rounds"),
        ("traffic", f"{in_bytes(totals.get('bytes_sent') or 0)} out, {in_bytes(totals.get('bytes_received') or 0)} in"),
        ("trainers idle", idle),
        (
            "peers",
            f"{peers.get('known')} known, {peers.get('live')} live, {took_part(peers)}",
        ),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(str(value)))
    return table


def took_part(peers: dict[str, Any]) -> str:
    """Who was in the newest entry, and what it means for its step if that is fewer than usual."""
    present, missed = peers.get("took_part_last_round") or 0, peers.get("missed_last_round") or 0
    smaller = f" ({present} of {present + missed}: a smaller step)" if missed else ""
    return f"{present} in the last round{smaller}"


def peer_table(peers: list[dict[str, Any]]) -> Table:
    """The other sites."""
    table = Table("peer", "live", "in last round", "state", "outer step", "head", "seen", "step", "link", "address")
    for peer in peers:
        table.add_row(
            short(str(peer.get("peer_id"))),
            "yes" if peer.get("is_live") else "no",
            "yes" if peer.get("took_part_last_round") else "no",
            str(peer.get("state") or "-"),
            str(peer.get("height", "-")),
            short(str(peer.get("chain_head") or "-"), 8),
            f"{number(peer.get('last_seen_s'), '.0f')} s ago",
            f"{number(peer.get('step_seconds'))} s",
            f"{in_bytes(peer['link_bytes_per_s'])}/s" if peer.get("link_bytes_per_s") else "-",
            str((peer.get("addresses") or ["-"])[0]),
        )
    return table


def view(status: Mapping[str, Any], peers: list[dict[str, Any]]) -> Group:
    """Everything `dilocoxd status` prints."""
    parts: list[Any] = [facts(status)]
    if peers:
        parts.append(peer_table(peers))
    for alert in status.get("alerts") or []:
        parts.append(Text(f"alert {alert.get('code')}: {alert.get('text')} -> {alert.get('remedy')}", style="bold red"))
    return Group(*parts)


@click.command()
@click.argument("target", metavar="[URL | RUN_DIR]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print /v1/status and /v1/peers as JSON.")
def status(target: str | None, as_json: bool) -> int:
    """Show what a daemon does, what it waits for and why; default http://127.0.0.1:8080."""
    client = client_for(target)
    found = client.ask("/v1/status")
    if not isinstance(found, dict):
        raise PeerError(f"{client.url} is not a dilocoxd daemon; check api.port")
    peers = client.ask("/v1/peers")
    if as_json:
        click.echo(json.dumps({"status": found, "peers": peers}, indent=1))
    else:
        Console(highlight=False).print(view(found, peers if isinstance(peers, list) else []))
        # Not in the table: a terminal would break the line, and it is there to be copied.
        click.echo(f"join with      dilocoxd join {found.get('join_address')}")
    return 0
