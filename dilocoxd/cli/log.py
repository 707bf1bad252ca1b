"""`dilocoxd log`: what the chain of committed outer steps in a run directory says, and whether it is sound."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from dilocoxd.cli.client import client_for
from dilocoxd.cli.status import in_bytes, short
from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.ids import Digest
from dilocoxd.store import snapshots
from dilocoxd.store.log import EntryLog
from dilocoxd.store.rundir import RunDir, open_run_dir
from dilocoxd.wire.entry import entry_hash, genesis_hash

EXIT_UNSOUND = 1
PAGE_MAX = 200
"""Of /v1/log."""


@click.group()
def log() -> None:
    """Read the log: show it, or (daemon stopped) verify it."""


def opened(run_dir: RunDir) -> EntryLog:
    """The log; the caller holds the run directory, because opening repairs what a crash left."""
    manifest, _ = run_dir.load()
    return EntryLog(run_dir.log, manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256()))


def rows(chain: EntryLog, last: int) -> list[dict[str, Any]]:
    """The newest `last` entries as plain values; 0 is all."""
    start = max(0, chain.height - last) if last else 0
    return [
        {
            "round": signed.entry.round,
            "entry_hash": entry_hash(signed.entry).hex(),
            "contributors": [
                {
                    "peer": c.peer,
                    "phase": c.phase,
                    "tokens": c.tokens,
                    "inner_steps": c.inner_steps,
                    "base_round": c.base_round,
                }
                for c in signed.entry.contributions
            ],
            "votes": [vote.peer for vote in signed.votes],
            "unix_ms": signed.time,
            "payload_bytes": chain.payload(index).length if chain.has_payload(index) else None,
        }
        for index, signed in enumerate(chain.entries(start), start)
    ]


def note_returned(run_dir: RunDir, chain: EntryLog, found: list[dict[str, Any]]) -> None:
    """Add `carries` to contributions of this site: its phases that a lost fork had taken out of the chain, and that
    came late, with this one (docs/internals.md section 4, ReturnWork). What others carry only they know."""
    from dilocoxd.daemon.site_record import load_record
    from dilocoxd.swarm.identity import load

    returned = load_record(run_dir.path).returned
    if not returned:
        return
    _, site = run_dir.load()
    me = load(run_dir.identity(site)).peer_id
    own = [c.phase for signed in chain.entries() for c in signed.entry.contributions if c.peer == me]
    carried: dict[int, list[int]] = {}
    for phase, first_carrier in returned:
        carrier = next((number for number in own if number >= first_carrier), None)
        if carrier is not None:
            carried.setdefault(carrier, []).append(phase)
    for contribution in (c for row in found for c in row["contributors"]):
        if contribution["peer"] == me and contribution["phase"] in carried:
            contribution["carries"] = carried[contribution["phase"]]


def found_rows(target: str | None, last: int) -> list[dict[str, Any]]:
    """From the disk of a stopped site, else from the API of a running one."""
    found: list[dict[str, Any]] = []
    if target is not None and Path(target).is_dir():
        run_dir = open_run_dir(Path(target))
        try:
            with run_dir.locked():
                chain = opened(run_dir)
                found = rows(chain, last)
                note_returned(run_dir, chain, found)
                return found
        except ConfigError:  # a daemon holds it
            pass
    client, page = client_for(target), f"limit={min(last or PAGE_MAX, PAGE_MAX)}"
    while not last or len(found) < last:
        answer = client.ask(f"/v1/log?{page}")
        found += answer
        if not answer or answer[-1]["round"] == 0:
            break
        page = f"limit={PAGE_MAX}&before={answer[-1]['round']}"
    newest = found[: last or None]
    return [{**row, "unix_ms": round(1000 * row["written_at"])} for row in reversed(newest)]


@log.command()
@click.argument("target", metavar="[URL | RUN_DIR]", required=False)
@click.option("--last", type=click.IntRange(min=0), default=20, show_default=True, help="Newest entries; 0 is all.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(target: str | None, last: int, as_json: bool) -> int:
    """Show committed outer steps: who contributed what. Of a running daemon, or of a stopped one's RUN_DIR."""
    found = found_rows(target, last)
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return 0
    table = Table("round", "entry", "contributors (tokens)", "votes", "payload")
    for row in found:
        table.add_row(
            str(row["round"]),
            row["entry_hash"][:12],
            ", ".join(contributor_text(c) for c in row["contributors"]),
            str(len(row["votes"])),
            in_bytes(row["payload_bytes"]) if row["payload_bytes"] is not None else "dropped",
        )
    Console(highlight=False).print(table)
    return 0


def contributor_text(contribution: dict[str, Any]) -> str:
    """Who, how much, and what work of a lost fork came with it."""
    late = ", ".join(str(phase) for phase in contribution.get("carries", ()))
    late = f"; late: phases {late} of a lost fork" if late else ""
    return f"{short(contribution['peer'], 6)} ({contribution['tokens']:,}{late})"


@log.command()
@click.argument("run_directory", metavar="RUN_DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(run_directory: Path, as_json: bool) -> int:
    """Check every entry, payload and snapshot against its hash. Exit code 1 if anything is damaged."""
    run_dir = open_run_dir(run_directory)
    with run_dir.locked():
        chain = opened(run_dir)
        problems = ([chain.cut_tail] if chain.cut_tail else []) + chain.verify()
        problems += snapshot_problems(run_dir)
        height, head = chain.height, chain.head
    report(height, head, problems, as_json=as_json)
    return EXIT_UNSOUND if problems else 0


def snapshot_problems(run_dir: RunDir) -> list[str]:
    """One sentence for each snapshot that is not whole."""
    problems = []
    for number in snapshots.list_rounds(run_dir.snapshots):
        try:
            snapshots.verify(run_dir.snapshots / str(number))
        except StoreError as error:
            problems.append(str(error))
    return problems


def report(height: int, head: Digest, problems: list[str], *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        found = {"ok": not problems, "height": height, "chain_head": head.hex(), "problems": problems}
        click.echo(json.dumps(found, indent=1))
        return
    for text in problems:
        click.echo(f"error: {text}", err=True)
    if not problems:
        click.echo(f"ok  {height} entries, head {head.hex()[:16]}")
