"""site.json: what the phase machine must not forget (machines/phase/settings.py); replaced atomically, durably."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dilocoxd.errors import StoreError, reason_of
from dilocoxd.machines.phase.outputs import ForgetWork, PersistRecord, PhaseCommand, RunOuter
from dilocoxd.machines.phase.settings import SiteRecord
from dilocoxd.store.durable import write_file
from dilocoxd.store.kept_work import KeptWorkStore, work_directory
from dilocoxd.wire.local.outer_worker import ApplyResult

FILE_NAME = "site.json"
NUMBERS_AHEAD = 16
"""Phase numbers that each writing reserves beyond those asked for. A restart skips those that were not used."""


def _checked(value: Any, name: str) -> int | None:
    if value is None and name != "phases_reserved":
        return None
    if type(value) is not int or not 0 <= value < 2**63:
        raise StoreError(f"{FILE_NAME}: {name} is {value!r}, not a phase number; restore the file or start a new run")
    return value


def load_record(run_directory: Path) -> SiteRecord:
    """The record; a fresh one if the file does not exist. Raises StoreError if it cannot be understood: guessing could
    count a contribution twice."""
    path = run_directory / FILE_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return SiteRecord()
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {reason_of(error)}; restore the file or start a new run") from error
    names = {field.name for field in dataclasses.fields(SiteRecord)}
    if not isinstance(values, dict) or not names <= set(values):  # earlier versions had more
        raise StoreError(f"{path} does not have the fields {sorted(names)}; restore the file or start a new run")
    return SiteRecord(**{name: _checked(value, name) for name, value in values.items() if name in names})  # type: ignore[arg-type]


class SiteRecordFile:
    """The record on disk: every writing reserves numbers for rounds to come, so that an offer waits for no disk.

    The phase machine asks for one number at a time, and before each offer. What an entry has settled the chain tells at
    the next start; only what no entry has is written.
    """

    def __init__(self, run_directory: Path) -> None:
        """Reads it. Raises StoreError."""
        self._run_directory = run_directory
        self.durable = load_record(run_directory)
        """What the file says, or would if there were one."""
        self._settled = self.durable.last_settled
        """Newest phase that was settled, here or in the chain, which is on disk as well."""

    def note(self, command: PersistRecord | ForgetWork) -> None:
        """What the phase machine wants on disk before it goes on. Raises StoreError."""
        if isinstance(command, ForgetWork):
            KeptWorkStore(work_directory(self._run_directory)).forget(command.phase)
            return
        wanted, numbers = command.record, command.record.phases_reserved
        is_known = command.is_derived or wanted.last_settled == self._settled
        if numbers <= self.durable.phases_reserved and is_known:
            self._settled = wanted.last_settled
            return
        ahead = dataclasses.replace(wanted, phases_reserved=max(self.durable.phases_reserved, numbers + NUMBERS_AHEAD))
        save_record(self._run_directory, ahead)
        self.durable, self._settled = ahead, ahead.last_settled


def overlapped(commands: Sequence[PhaseCommand]) -> list[PhaseCommand]:
    """In the order in which they are carried out: an entry that waits only for the record is applied meanwhile.

    Everybody waits for it, and it changes shared memory alone, which a crash before the record is durable forgets
    too. Its answer is taken in once all of these are done.
    """
    found = list(commands)
    for at, (first, then) in enumerate(itertools.pairwise(commands)):
        is_applied = isinstance(then, RunOuter) and isinstance(then.request, ApplyResult)
        if is_applied and isinstance(first, PersistRecord):
            found[at : at + 2] = then, first
    return found


def save_record(run_directory: Path, record: SiteRecord) -> None:
    """Durable when it returns. Raises StoreError."""
    text = json.dumps(dataclasses.asdict(record), indent=1, sort_keys=True) + "\n"
    write_file(run_directory / FILE_NAME, text.encode())
