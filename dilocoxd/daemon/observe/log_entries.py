"""Entries of the log as people see them: the rows of GET /v1/log and of `dilocoxd log`, and their contributors."""

from collections.abc import Iterable

from dilocoxd.answers.rounds import Contributor, LogEntry
from dilocoxd.errors import StoreError
from dilocoxd.store.log import EntryLog
from dilocoxd.wire.entry import Contribution, entry_hash, entry_unix_ms


def contributor(contribution: Contribution) -> Contributor:
    """One contributor in GET /v1/rounds and /v1/log."""
    return Contributor(
        peer=contribution.peer,
        phase=contribution.phase,
        tokens=contribution.tokens,
        inner_steps=contribution.inner_steps,
        base_round=contribution.base_round,
    )


def log_entries(log: EntryLog, indices: Iterable[int]) -> list[LogEntry]:
    """Entries of the log; those that a roll-back removes meanwhile are left out."""
    found = []
    for index in indices:
        try:
            signed = log.entry(index)
            payload_bytes = log.payload(index).length if log.has_payload(index) else None
        except StoreError:
            continue
        entry = signed.entry
        found.append(
            LogEntry(
                round=entry.round,
                entry_hash=entry_hash(entry).hex(),
                parent=entry.parent.hex(),
                state_digest=entry.state_digest.hex(),
                contributors=tuple(contributor(one) for one in entry.contributions),
                votes=tuple(vote.peer for vote in signed.votes),
                lowrank_r=entry.lowrank_r,
                next_lowrank_r=entry.next_lowrank_r,
                next_inner_steps=entry.next_inner_steps,
                voted_at=entry_unix_ms(signed) / 1000,
                payload_bytes=payload_bytes,
            )
        )
    return found
