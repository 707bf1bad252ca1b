"""Moves events to where they are read: JSON lines in the run directory (bounded), and stderr or the journal."""

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TextIO

from dilocoxd.answers.fields import Severity
from dilocoxd.answers.words import wrapped
from dilocoxd.errors import StoreError
from dilocoxd.site_names import in_words
from dilocoxd.telemetry.alerts import kind_of
from dilocoxd.telemetry.catalogue import AlertRaised, Event, Level
from dilocoxd.telemetry.journald import Journald, is_journal
from dilocoxd.telemetry.sentences import sentence
from dilocoxd.terminal import columns_of

FILE_BYTES_MAX: Final = 16 << 20
"""Then the file becomes `events.jsonl.1` (the one before it goes)."""

SEVERITY: Final[dict[Level, int]] = {"debug": 0, "info": 1, "warning": 2, "error": 3}


_OF_SEVERITY: Final[dict[Severity, Level]] = {"critical": "error", "warning": "warning", "info": "info"}


def level_of(event: Event) -> Level:
    """How severe it is: that of its kind, and of an alert that of the alert."""
    if isinstance(event, AlertRaised):
        return _OF_SEVERITY[kind_of(event.code).severity]
    return event.level


def as_record(event: Event, *, unix_s: float) -> dict[str, object]:
    """The JSON form: time, name, level, then the event's own fields."""
    return {
        "time": round(unix_s, 3),
        "event": event.name,
        "level": level_of(event),
        **dataclasses.asdict(event),
    }


def shown_level(event: Event) -> Level:
    """How severe it is for who reads along: a detail is debug there."""
    level = level_of(event)
    return "debug" if level == "info" and event.is_detail else level


def as_text(event: Event) -> str:
    """The form for people: a sentence, or `round.committed round=3 ...` without the empty fields."""
    told = sentence(event)
    if told:
        return told
    parts = [f"{name}={_short(value)}" for name, value in dataclasses.asdict(event).items() if value not in ("", ())]
    return " ".join([event.name, *parts])


WRAPPED_MIN: Final = 20
"""Where a terminal leaves less room for words than this, it breaks lines itself."""


def as_line(text: str, level: Level, *, unix_s: float, is_dated: bool) -> str:
    """A line on a terminal, `12:34:56 ...`; in a file or journal (`is_dated`) date and level are told."""
    when = time.localtime(unix_s)
    if is_dated:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', when)} {level.upper()} {text}"
    mark = {"warning": "WARNING ", "error": "ERROR "}.get(level, "")
    return f"{time.strftime('%H:%M:%S', when)} {mark}{text}"


def fitted(text: str, columns: int) -> str:
    """The parts of a line for which `columns` have room, the first one whole; two spaces stand between parts.

    A part that is too long is left out, and shorter ones after it are still shown.

    >>> fitted("round 7  3/3 sites  learning rate at its lowest  next in ~2 s", 33)
    'round 7  3/3 sites  next in ~2 s'
    """
    shown, *others = text.split("  ")
    for part in others:
        if len(shown) + 2 + len(part) <= columns:
            shown += f"  {part}"
    return shown


def _columns(stream: TextIO) -> int:
    """Width of a terminal; more than any line's where there is none."""
    return columns_of(stream) or sys.maxsize


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
        self._is_dated = not self._stream.isatty()
        self._clock = clock
        self._file_bytes_max = file_bytes_max
        self._file: TextIO | None = None
        self.in_words: Callable[[str], str] = in_words
        """A line for people, with names of sites in the place of their ids; the file keeps the ids."""
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
        if self._journal is not None and SEVERITY[level_of(event)] >= SEVERITY[self._level]:
            # Details too, with their values: that is what the journal is asked for; `-p info` leaves them out.
            self._journal.send(record, self.in_words(as_text(event)), shown_level(event))
        elif self._journal is None and SEVERITY[shown_level(event)] >= SEVERITY[self._level]:
            self._print(self.in_words(as_text(event)), shown_level(event), now)
        for listener in self._listeners:
            listener(record)

    def say(self, text: str) -> None:
        """How it goes, for who reads along: not an event, and not in the file. On a terminal one line, if it can be."""
        if SEVERITY["info"] < SEVERITY[self._level]:
            return
        now = self._clock()
        if self._journal is not None:
            self._journal.send({"time": round(now, 3)}, text, "info")
        else:
            room = _columns(self._stream) - len(as_line("", "info", unix_s=now, is_dated=self._is_dated))
            self._print(fitted(text, room), "info", now)

    def _print(self, text: str, level: Level, unix_s: float) -> None:
        line = as_line(text, level, unix_s=unix_s, is_dated=self._is_dated)
        width, indent = _columns(self._stream), len(line) - len(text)
        if self._is_dated or width < indent + WRAPPED_MIN:
            width = sys.maxsize
        with contextlib.suppress(OSError):  # a full disk or a closed terminal must not end training
            print("\n".join(wrapped(line, width, indent)), file=self._stream, flush=True)

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
