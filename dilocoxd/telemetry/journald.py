"""Moves events to systemd's journal with one field per value, so that `journalctl DILOCOXD_ROUND=7` finds them.

Native protocol: one datagram of NAME=value lines; values with line breaks carry their length (systemd, JOURNAL_NATIVE_
PROTOCOL). Never blocks: what the socket does not take at once is dropped and counted; the file in the run directory has
it. Used when stderr is the journal (JOURNAL_STREAM names it), instead of printing there.
"""

import json
import os
import re
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dilocoxd.telemetry.catalogue import Level

SOCKET: Final = Path("/run/systemd/journal/socket")
PRIORITY: Final[dict[Level, int]] = {"debug": 7, "info": 6, "warning": 4, "error": 3}
VALUE_BYTES_MAX: Final = 8192
_NAME: Final = re.compile(r"[^A-Z0-9_]")


def is_journal(stream_fd: int, environment: Mapping[str, str]) -> bool:
    """Whether this descriptor is the one that systemd connected to the journal."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(stream_fd)
    except OSError:
        return False
    return (device, inode) == (str(status.st_dev), str(status.st_ino))


def field(name: str, value: str) -> bytes:
    """One field as it travels."""
    data = value.encode("utf-8", "replace")[:VALUE_BYTES_MAX]
    if b"\n" in data:
        return name.encode("ascii") + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return name.encode("ascii") + b"=" + data + b"\n"


def datagram(record: Mapping[str, object], line: str, level: Level) -> bytes:
    """An event for the journal: its line for people, and every value as a field of its own."""
    parts = [
        field("MESSAGE", line),
        field("PRIORITY", str(PRIORITY[level])),
        field("SYSLOG_IDENTIFIER", "dilocoxd"),
    ]
    for name, value in record.items():
        text = value if isinstance(value, str) else json.dumps(value)
        parts.append(field("DILOCOXD_" + _NAME.sub("_", name.upper()), text))
    return b"".join(parts)


class Journald:
    """The sending end."""

    def __init__(self, path: Path = SOCKET) -> None:
        """Raises OSError when there is no journal."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.num_dropped = 0
        try:
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise

    def send(self, record: Mapping[str, object], line: str, level: Level) -> None:
        """Hand it over, or drop it."""
        try:
            self._socket.send(datagram(record, line, level))
        except OSError:
            self.num_dropped += 1

    def close(self) -> None:
        """No more events."""
        self._socket.close()
