"""site.json: what the phase machine must not forget (rounds/phase_events.SiteRecord); replaced atomically, durably."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from dilocoxd.errors import StoreError
from dilocoxd.ids import PhaseId
from dilocoxd.rounds.phase_events import SiteRecord
from dilocoxd.store.durable import write_file

FILE_NAME = "site.json"


def _checked(value: Any, name: str) -> int | None:
    if value is None and name != "phases_reserved":
        return None
    if type(value) is not int or not 0 <= value < 2**63:
        raise StoreError(f"{FILE_NAME}: {name} is {value!r}, not a phase number; restore the file or start a new run")
    return value


def _checked_pairs(value: Any) -> tuple[tuple[PhaseId, PhaseId], ...]:
    is_list = isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    if not is_list:
        raise StoreError(f"{FILE_NAME}: returned is {value!r}, not pairs; restore the file or start a new run")
    numbers = [[_checked(number, "phases_reserved") for number in pair] for pair in value]
    return tuple((PhaseId(phase or 0), PhaseId(carrier or 0)) for phase, carrier in numbers)


def _checked_phases(value: Any, name: str) -> tuple[PhaseId, ...]:
    if not isinstance(value, list):
        raise StoreError(f"{FILE_NAME}: {name} is {value!r}, not phases; restore the file or start a new run")
    return tuple(PhaseId(_checked(number, "phases_reserved") or 0) for number in value)


def load_record(run_directory: Path) -> SiteRecord:
    """The record; a fresh one if the file does not exist. Raises StoreError if it cannot be understood: guessing could
    count a contribution twice."""
    path = run_directory / FILE_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return SiteRecord()
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}; restore the file or start a new run") from error
    names = {field.name for field in dataclasses.fields(SiteRecord)}
    if not isinstance(values, dict) or set(values) != names:
        raise StoreError(f"{path} does not have the fields {sorted(names)}; restore the file or start a new run")
    returned = _checked_pairs(values.pop("returned"))
    lists = {name: _checked_phases(values.pop(name), name) for name in ("formed_with", "carried")}
    numbers = {name: _checked(value, name) for name, value in values.items()}
    return SiteRecord(**numbers, returned=returned, **lists)  # type: ignore[arg-type]


def save_record(run_directory: Path, record: SiteRecord) -> None:
    """Durable when it returns. Raises StoreError."""
    text = json.dumps(dataclasses.asdict(record), indent=1, sort_keys=True) + "\n"
    write_file(run_directory / FILE_NAME, text.encode())
