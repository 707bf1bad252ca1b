"""Everything that the HTTP API reads: status, history in memory, log and snapshots on disk, configuration.

Implements api.interface.View. Reads, never decides; files are read in a thread.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from dilocoxd.daemon.state import contributor_json
from dilocoxd.daemon.view import Sources, StatusView, Who, alert_json
from dilocoxd.errors import StoreError
from dilocoxd.store.log import EntryLog
from dilocoxd.store.snapshots import list_rounds, read_index
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.wire.entry import entry_hash

SECRET_WORDS: Final = ("token", "secret", "password", "passphrase", "api_key")
MASK: Final = "***"
OWN_SPANS_SHOWN: Final = 2000


class DaemonView(StatusView):
    """The whole view."""

    def __init__(self, who: Who, sources: Sources, exposition: Callable[[], bytes]) -> None:
        super().__init__(who, sources)
        self._exposition = exposition

    def peers(self) -> list[dict[str, Any]]:
        """GET /v1/peers."""
        height = self._from.ledger.chain.height
        return [{**peer, "rounds_behind": height - peer["height"]} for peer in self._from.peers()]

    def rounds(self, first: int, limit: int) -> list[dict[str, Any]]:
        """Rounds ascending from `first`: committed ones and the one that is under way."""
        rows = self._from.journal.rounds
        return [rows[index].as_json() for index in sorted(index for index in rows if index >= first)[:limit]]

    def rounds_before(self, before: int | None, limit: int) -> list[dict[str, Any]]:
        """Rounds descending, below `before` (None: from the newest)."""
        rows = self._from.journal.rounds
        chosen = sorted((index for index in rows if before is None or index < before), reverse=True)[:limit]
        return [rows[index].as_json() for index in chosen]

    def round(self, index: int) -> dict[str, Any] | None:
        """One round, or None if this daemon does not know it."""
        row = self._from.journal.rounds.get(index)
        return row.as_json() if row is not None else None

    def losses(self) -> dict[str, Any]:
        """GET /v1/losses."""
        journal = self._from.journal
        return {"inner": journal.inner_losses.points(), "validation": journal.validation_losses.points()}

    def timeline(self) -> list[dict[str, Any]]:
        """GET /v1/timeline."""
        return list(self._from.journal.spans)

    def swarm_timeline(self, since: float) -> dict[str, Any]:
        """GET /v1/timeline/sites: ourselves first."""
        journal = self._from.journal
        own = [span for span in journal.spans if span["end"] > since][-OWN_SPANS_SHOWN:]
        phases = [span.as_json() for span in journal.phases if span.end > since]
        mine = {"peer_id": self._who.peer_id, "is_self": True, "spans": [*own, *phases]}
        sites = [mine, *journal.others.as_json(since)]
        now = float(journal.now())
        starts = [span["start"] for site in sites for span in site["spans"]]
        return {"start": min(starts, default=now), "end": now, "sites": sites}

    def alerts(self) -> list[dict[str, Any]]:
        """GET /v1/alerts."""
        found = []
        for alert in self._from.journal.alerts.values():
            kind = kind_of(alert.code)
            extra = {"summary": kind.summary, "cause": kind.cause, "runbook": f"#{kind.code}"}
            found.append({**alert_json(alert), **extra})
        return found

    def config(self) -> dict[str, Any]:
        """GET /v1/config, secrets masked."""
        opened = self._from.opened
        return {
            "run_id": self._who.run_id,
            "run_directory": str(opened.run_dir.path),
            "run": masked(opened.manifest.model_dump(mode="json")),
            "site": masked(opened.config.model_dump(mode="json")),
            "warnings": [*opened.manifest.warnings(), *opened.config.api.warnings()],
        }

    async def log(self, before: int | None, limit: int) -> list[dict[str, Any]]:
        """Entries of the log descending, below `before` (None: from the newest)."""
        log = self._from.ledger.log
        last = log.height if before is None else min(before, log.height)
        return await asyncio.to_thread(entries_json, log, range(last - 1, max(-1, last - 1 - limit), -1))

    async def log_entry(self, index: int) -> dict[str, Any] | None:
        """One entry, or None if it is not in the log."""
        log = self._from.ledger.log
        found = await asyncio.to_thread(entries_json, log, range(index, index + 1)) if index < log.height else []
        return found[0] if found else None

    async def snapshots(self) -> list[dict[str, Any]]:
        """GET /v1/snapshots, newest first."""
        return await asyncio.to_thread(self._snapshots)

    def _snapshots(self) -> list[dict[str, Any]]:
        directory = self._from.opened.run_dir.snapshots
        found = []
        for number in reversed(list_rounds(directory)):
            try:
                index = read_index(directory / str(number))
            except StoreError:
                continue  # pruned just now, or damaged: nobody can use it
            found.append(
                {
                    "round": index.round,
                    "total_bytes": index.total_bytes,
                    "anchor_sha256": index.anchor_sha256,
                    "state_digest": index.state_digest,
                    "chain_head": index.chain_head,
                    "files": [file.name for file in index.files],
                }
            )
        return found

    def metrics(self) -> str:
        """GET /metrics."""
        return self._exposition().decode("utf-8")

    def listen(self, listener: Callable[[dict[str, object]], None]) -> None:
        """Every event from now on."""
        self._from.opened.events.listen(listener)


def entries_json(log: EntryLog, indices: range) -> list[dict[str, Any]]:
    """Entries as plain values; those that a roll-back removes meanwhile are left out."""
    found = []
    for index in indices:
        try:
            signed = log.entry(index)
            payload_bytes = log.payload(index).length if log.has_payload(index) else None
        except StoreError:
            continue
        entry = signed.entry
        found.append(
            {
                "round": int(entry.round),
                "entry_hash": entry_hash(entry).hex(),
                "parent": entry.parent.hex(),
                "state_digest": entry.state_digest.hex(),
                "contributors": [contributor_json(contribution) for contribution in entry.contributions],
                "votes": [vote.peer for vote in signed.votes],
                "lowrank_r": entry.lowrank_r,
                "next_lowrank_r": entry.next_lowrank_r,
                "next_inner_steps": entry.next_inner_steps,
                "written_at": signed.time / 1000,
                "payload_bytes": payload_bytes,
            }
        )
    return found


def masked(value: Any, name: str = "") -> Any:
    """The same with secrets replaced: fields that are named like one, and passwords inside addresses.

    >>> masked({"token": "abc", "token_file": "t", "url": "https://me:pw@host/x"})
    {'token': '***', 'token_file': 't', 'url': 'https://***@host/x'}
    """
    if isinstance(value, dict):
        return {key: masked(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if name.endswith(SECRET_WORDS) and value:
        return MASK
    scheme, mark, rest = value.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{MASK}@{host.rpartition('@')[2]}{slash}{path}" if mark and "@" in host else value
