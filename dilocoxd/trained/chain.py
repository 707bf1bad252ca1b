"""The chain of a run directory, read only: also while a daemon writes it (store/log.py: any process may read).

Decides nothing about what is there; a record that does not continue the chain ends the reading with an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dilocoxd.config.manifest import Manifest
from dilocoxd.errors import StoreError
from dilocoxd.ids import Digest
from dilocoxd.store.durable import store_error
from dilocoxd.store.log import SUFFIX
from dilocoxd.store.log_record import Record, check_payload, read_record
from dilocoxd.wire.entry import Entry, entry_hash, genesis_hash


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One record, where it lies, and the chain head after it."""

    path: Path
    record: Record
    head: Digest

    @property
    def entry(self) -> Entry:
        return self.record.signed.entry


def read_chain(directory: Path, manifest: Manifest, stop: int | None = None) -> Iterator[ChainLink]:
    """Records 0 to `stop` - 1 (None: to the end), each checked against the one before. Raises StoreError."""
    head = genesis_hash(manifest.run_id, manifest.sha256())
    index = 0
    while stop is None or index < stop:
        path = directory / f"{index:012d}{SUFFIX}"
        try:
            record = read_record(path)
        except FileNotFoundError:
            if stop is not None:
                raise StoreError(f"the log {directory} ends at entry {index}, {stop} are needed") from None
            return
        except OSError as error:
            raise store_error(f"reading entry {index}", path, error) from error
        entry = record.signed.entry
        if entry.run_id != manifest.run_id or entry.round != index or entry.parent != head:
            raise StoreError(f"{path} does not continue the chain of run {manifest.run_id}; see `dilocoxd log verify`")
        head = entry_hash(entry)
        yield ChainLink(path, record, head)
        index += 1


def check_results(link: ChainLink) -> None:
    """Raise StoreError unless the result payload of this entry is there and is what was voted for."""
    if not link.record.has_payload:
        raise StoreError(f"the payload of entry {link.entry.round} was dropped by retention")
    check_payload(link.path, link.record)


@dataclass(frozen=True, slots=True)
class BroughtIn:
    """What one site brought into a state."""

    peer: str
    num_rounds: int
    tokens: int


def shares(entries: Sequence[Entry]) -> list[BroughtIn]:
    """Contributors of these entries, those with most tokens first."""
    rounds: dict[str, int] = {}
    tokens: dict[str, int] = {}
    for entry in entries:
        for one in entry.contributions:
            rounds[one.peer] = rounds.get(one.peer, 0) + 1
            tokens[one.peer] = tokens.get(one.peer, 0) + one.tokens
    return sorted((BroughtIn(peer, rounds[peer], tokens[peer]) for peer in rounds), key=lambda s: (-s.tokens, s.peer))
