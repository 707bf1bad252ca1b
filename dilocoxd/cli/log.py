"""`dilocoxd log`: what the chain of committed outer steps in a run directory says, and whether it is sound."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
from pydantic import JsonValue, TypeAdapter

from dilocoxd.answers.rounds import LogEntry
from dilocoxd.cli.client import client_for
from dilocoxd.cli.logs import Labels
from dilocoxd.cli.screens.layout import width
from dilocoxd.cli.screens.rounds import log_screen
from dilocoxd.cli.shell.telling import tell
from dilocoxd.daemon.observe.log_entries import log_entries
from dilocoxd.errors import ConfigError, StoreError
from dilocoxd.ids import Digest
from dilocoxd.store import snapshots
from dilocoxd.store.log import EntryLog
from dilocoxd.store.rundir import RunDir, open_run_dir
from dilocoxd.wire.entry import entry_hash, genesis_hash, offer_text, vote_text, voted_for

EXIT_UNSOUND = 1
PAGE_MAX = 200
"""Of /v1/log."""


def opened(run_dir: RunDir) -> EntryLog:
    """The log; the caller holds the run directory, because opening repairs what a crash left."""
    manifest, _ = run_dir.load()
    return EntryLog(run_dir.log, manifest.run_id, genesis_hash(manifest.run_id, manifest.sha256()))


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An entry, and what only the site itself knows of it."""

    entry: LogEntry
    carries: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Contributor to earlier phases whose work came late, with this one. What others carry only they know."""

    def as_json(self) -> Mapping[str, JsonValue]:
        """The object of /v1/log with what is known on top."""
        row = TypeAdapter(LogEntry).dump_python(self.entry, mode="json")
        for contributor in row["contributors"]:
            if contributor["peer"] in self.carries:
                contributor["carries"] = list(self.carries[contributor["peer"]])
        return {**row, "unix_ms": round(1000 * self.entry.voted_at)}


def stored_entries(run_dir: RunDir, last: int) -> list[ShownEntry]:
    """The newest `last` entries of a stopped site, ascending; 0 is all."""
    chain = opened(run_dir)
    start = max(0, chain.height - last) if last else 0
    carried = carried_phases(run_dir)
    found = []
    for entry in log_entries(chain, range(start, chain.height)):
        late = {
            one.peer: carried[one.peer, one.phase] for one in entry.contributors if (one.peer, one.phase) in carried
        }
        found.append(ShownEntry(entry, late))
    return found


def carried_phases(run_dir: RunDir) -> dict[tuple[str, int], tuple[int, ...]]:
    """By contribution of this site (peer, phase): earlier phases whose work came late, with it (docs/internals.md 4.3),
    as far as it is still kept."""
    from dilocoxd.store.kept_work import KeptWorkStore
    from dilocoxd.swarm.discovery.identity import load

    contents = KeptWorkStore(run_dir.own_work).contents()
    if not contents:
        return {}
    _, site = run_dir.load()
    me = load(run_dir.identity(site)).peer_id
    earlier = {
        (me, int(phase)): tuple(sorted(int(item) for item, times in content.items() if times > 0 and item != phase))
        for phase, content in contents.items()
    }
    return {contribution: phases for contribution, phases in earlier.items() if phases}


def shown_entries(target: str | None, last: int) -> list[ShownEntry]:
    """From the disk of a stopped site, else from the API of a running one."""
    if target is not None and Path(target).is_dir():
        run_dir = open_run_dir(Path(target))
        try:
            with run_dir.locked():
                return stored_entries(run_dir, last)
        except ConfigError:  # a daemon holds it
            pass
    found: list[LogEntry] = []
    client, page = client_for(target), f"limit={min(last or PAGE_MAX, PAGE_MAX)}"
    while not last or len(found) < last:
        answer = client.ask(f"/v1/log?{page}", list[LogEntry])
        found += answer
        if not answer or answer[-1].round == 0:
            break
        page = f"limit={PAGE_MAX}&before={answer[-1].round}"
    return [ShownEntry(entry) for entry in reversed(found[: last or None])]


def show(target: str | None, last: int, is_wide: bool, as_json: bool) -> int:
    """Exit code of `dilocoxd log show` (cli/declared/chain.py). Raises ConfigError."""
    found = shown_entries(target, last)
    if as_json:
        click.echo(json.dumps([row.as_json() for row in found], indent=1))
        return 0
    entries, carries = [row.entry for row in found], [row.carries for row in found]
    click.echo(log_screen(entries, carries, width(is_wide=is_wide), Labels(target)))
    return 0


def verify(run_directory: Path, as_json: bool) -> int:
    """Exit code of `dilocoxd log verify` (cli/declared/chain.py). Raises ConfigError."""
    run_dir = open_run_dir(run_directory)
    with run_dir.locked():
        chain = opened(run_dir)
        problems = ([chain.cut_tail] if chain.cut_tail else []) + chain.verify()
        problems += snapshot_problems(run_dir)
        height, head = chain.height, chain.head
    report(height, head, problems, as_json=as_json)
    return EXIT_UNSOUND if problems else 0


def evidence(run_directory: Path, folder: Path | None, as_json: bool) -> int:
    """Exit code of `dilocoxd log evidence` (cli/declared/chain.py). Raises ConfigError."""
    from dilocoxd.store.audits import AuditFolders
    from dilocoxd.swarm.discovery.identity import is_signed_by
    from dilocoxd.trained.proof.evidence import check_evidence

    run_dir = open_run_dir(run_directory)
    manifest, _ = run_dir.load()
    run = genesis_hash(manifest.run_id, manifest.sha256())
    rows: list[dict[str, JsonValue]] = []
    for path in [folder] if folder is not None else AuditFolders(run_dir.path).kept():
        found = check_evidence(manifest, run_dir.log, path)
        offers = zip(found.entry.contributions, found.offers, strict=True)
        is_signed = all(is_signed_by(named.peer, offer, offer_text(run, named)) for named, offer in offers)
        digest = entry_hash(found.entry)
        texts = [vote_text(run, voted_for(found.entry, digest, vote.attempt), vote.unix_ms) for vote in found.votes]
        votes = zip(found.votes, texts, strict=True)
        is_voted = all(is_signed_by(vote.peer, vote.signature, text) for vote, text in votes)
        rows.append(
            {
                "folder": found.folder, "round": found.round, "segment": found.segment, "owner": found.owner,
                "is_proved": found.is_proved and is_signed and is_voted,
                "why": _said(found.why, is_signed=is_signed, is_voted=is_voted),
            }
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    for row in rows if not as_json else []:
        said = "FALSE" if row["is_proved"] else "not proved"
        owner = row["owner"] or "unknown"
        click.echo(f"{said}  round {row['round']} segment {row['segment']} owner {owner}: {row['why']}")
    if not rows and not as_json:
        click.echo("ok  no evidence is kept")
    return EXIT_UNSOUND if any(row["is_proved"] for row in rows) else 0


def _said(why: str, *, is_signed: bool, is_voted: bool) -> str:
    if is_signed and is_voted:
        return why
    return "a vote is not signed by its voter" if is_signed else "an offer is not signed by its contributor"


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
        tell(f"error: {text}")
    if not problems:
        click.echo(f"ok  {height} entries, head {head.hex()[:16]}")
