"""Moves events to where they are read: JSON lines in the run directory (bounded), and stderr or the journal."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TextIO

from dilocoxd.errors import StoreError
from dilocoxd.telemetry.catalogue import Event, Level
from dilocoxd.telemetry.journald import Journald, is_journal

FILE_BYTES_MAX: Final = 16 << 20
"""Then the file becomes `events.jsonl.1` (the one before it goes)."""

SEVERITY: Final[dict[Level, int]] = {"debug": 0, "info": 1, "warning": 2, "error": 3}


def as_record(event: Event, *, unix_s: float) -> dict[str, object]:
    """The JSON form: time, name, level, then the event's own fields."""
    return {
        "time": round(unix_s, 3),
        "event": event.name,
        "level": event.level,
        **dataclasses.asdict(event),
    }


def as_line(event: Event, *, unix_s: float) -> str:
    """The form for people: `12:34:56 round.committed round=3 ...`; empty fields are left out."""
    clock = time.strftime("%H:%M:%S", time.localtime(unix_s))
    parts = [f"{name}={_short(value)}" for name, value in dataclasses.asdict(event).items() if value not in ("", ())]
    mark = {"warning": "WARNING ", "error": "ERROR "}.get(event.level, "")
    return " ".join([clock, mark + event.name, *parts])


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return "[" + ",".join(_short(v) for v in value) + "]"
    text = str(value)
    return f'"{text}"' if " " in text else text


def journal_of(stream: TextIO, environment: Mapping[str, str]) -> Journald | None:
    """The journal, if the stream leads there; else None."""
    try:
        return Journald() if is_journal(stream.fileno(), environment) else None
    except (OSError, ValueError):
        return None


class EventLog:
    """Where events go. `path` None: only to the stream."""

    def __init__(
        self,
        path: Path | None,
        *,
        level: Level = "info",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.time,
        file_bytes_max: int = FILE_BYTES_MAX,
        journal: Journald | None = None,
    ) -> None:
        """`journal` takes the place of the stream."""
        self._journal = journal
        self._path = path
        self._level = level
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._file_bytes_max = file_bytes_max
        self._file: TextIO | None = None
        self._listeners: list[Callable[[dict[str, object]], None]] = []
        if path is not None:
            self._open(path)

    @property
    def level(self) -> Level:
        """Least severity shown on the stream."""
        return self._level

    @level.setter
    def level(self, level: Level) -> None:
        self._level = level

    def listen(self, listener: Callable[[dict[str, object]], None]) -> None:
        """Call `listener` with the JSON form of every event from now on; it must not block or raise."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Record `event`. A disk that refuses is told once on the stream; training goes on without the file."""
        now = self._clock()
        record = as_record(event, unix_s=now)
        self._append(record)
        if SEVERITY[event.level] >= SEVERITY[self._level]:
            if self._journal is not None:
                self._journal.send(record, as_line(event, unix_s=now).partition(" ")[2], event.level)
            else:
                self._print(as_line(event, unix_s=now))
        for listener in self._listeners:
            listener(record)

    def _print(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk or a closed terminal must not end training
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Flush and close the file; later events still go to the stream."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened ({error.strerror}); check the folder and its owner") from error

    def _append(self, record: dict[str, object]) -> None:
        if self._file is None or self._path is None:
            return
        try:
            self._file.write(json.dumps(record, separators=(",", ":")) + "\n")
            self._file.flush()
            if self._file.tell() >= self._file_bytes_max:
                self._file.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            self._file = None
            print(f"{self._path}: events are no longer written ({error.strerror})", file=self._stream, flush=True)
