"""From a line of events.jsonl, or of /v1/events, back to what is shown to people."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from dilocoxd.telemetry.catalogue import Event, Level
from dilocoxd.telemetry.events import as_line, as_text, shown_level
from dilocoxd.telemetry.kinds import event_types

_TYPES: Final = {kind.name: kind for kind in event_types()}
_FRAME: Final = ("time", "event", "level")


def event_of(record: Mapping[str, Any]) -> Event | None:
    """The event; None if this version has none of that name with these fields."""
    kind = _TYPES.get(str(record["event"]))
    values = {name: tuple(v) if isinstance(v, list) else v for name, v in record.items() if name not in _FRAME}
    if kind is None or set(values) != {field.name for field in dataclasses.fields(kind)}:
        return None
    return kind(**values)


def shown_level_of(record: Mapping[str, Any]) -> Level:
    """How severe it is for who reads along. Raises KeyError for what is no event."""
    event = event_of(record)
    level: Level = record["level"]
    return shown_level(event) if event is not None and level == "info" else level


def line_of(record: Mapping[str, Any]) -> str:
    """With date and level. Raises KeyError, ValueError, TypeError for what is no event."""
    event = event_of(record)
    if event is not None:
        text = as_text(event)
    else:
        facts = [f"{name}={value}" for name, value in record.items() if name not in _FRAME and value not in ("", [])]
        text = " ".join([str(record["event"]), *facts])
    return as_line(text, shown_level_of(record), unix_s=float(record["time"]), is_dated=True)
