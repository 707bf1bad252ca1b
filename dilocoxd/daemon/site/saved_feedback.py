"""Reads what the feedback file says of itself, before the outer worker is asked to load it; or forgets all of it.

The outer worker writes the file and checks its data (outerworker/feedback_file.py); this is only the table in front:
u64 little-endian length, then JSON, as in every safetensors file.
"""

import json
import struct
from pathlib import Path

from dilocoxd.ids import PhaseId
from dilocoxd.machines.phase.settings import SavedFeedback
from dilocoxd.store.durable import fsync_directory, store_error

HEADER_BYTES_MAX = 64 << 20
_LENGTH = struct.Struct("<Q")
_NO_PHASE = -1


def forget_saved(path: Path) -> None:
    """There is none from now on, after a crash either. Blocks. Raises StoreError."""
    try:
        path.unlink(missing_ok=True)
        fsync_directory(path.parent)
    except OSError as error:
        raise store_error("forgetting saved error feedback", path, error) from error


def read_saved(path: Path) -> SavedFeedback | None:
    """None: there is none, or none that can be understood. Blocks."""
    try:
        with path.open("rb") as file:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            if length > HEADER_BYTES_MAX:
                return None
            metadata = json.loads(file.read(length))["__metadata__"]
        pairs = [item.split(":") for item in metadata["content"].split()]
        content = {PhaseId(int(phase)): int(times) for phase, times in pairs}
        phase, in_flight = int(metadata["phase"]), int(metadata["in_flight"])
    except (OSError, ValueError, TypeError, KeyError, struct.error):
        return None
    return SavedFeedback(PhaseId(phase), PhaseId(in_flight) if in_flight != _NO_PHASE else None, content)
