"""What the shared buffers hold and how far an in-place update came: the one thing a restarted outer worker trusts.

Two copies with a checksum and a sequence number in one 4096-byte shared buffer; they are written in turn, so a write
torn by SIGKILL destroys the older copy only. The buffer outlives the process, not the daemon: no fsync is needed.
Source: docs/internals.md section 4, ADR 0003.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from dilocoxd.errors import WorkerError

JOURNAL_BYTES: Final = 4096
CRASH_VARIABLE: Final = "DILOCOXD_CRASH_AT_JOURNAL_WRITE"
"""Test hook: `before:N` or `after:N` makes the process kill itself at its N-th journal write (1-based)."""

_COPY_BYTES: Final = JOURNAL_BYTES // 2
_MAGIC: Final = b"dlxjrnl1"
_CHECKSUM_BYTES: Final = 32
PATH_BYTES_MAX: Final = 1024
_FORMAT: Final = struct.Struct("<8sQ32s?Q32s32sBQBQQqQq?Q1024s")
NO_PHASE: Final = -1
_NO_DIGEST: Final = bytes(32)


class Update(IntEnum):
    """The in-place update that is under way."""

    NONE = 0
    APPLY = 1
    FORM = 2
    SETTLE = 3
    COPY_BASE = 4
    RETURN = 5


class Saved(IntEnum):
    """Whose old contents UNDO holds."""

    NOTHING = 0
    STATE = 1
    FEEDBACK = 2
    OWNER_FEEDBACK = 3
    BOTH_FEEDBACKS = 4


@dataclass(frozen=True, slots=True)
class JournalState:
    """Contents of the journal. The order of the fields is the order on disk."""

    plan_sha256: bytes = _NO_DIGEST
    """Which run and layout the buffers belong to."""
    is_loaded: bool = False
    round: int = 0
    """Shared state k that ANCHOR and MOMENTUM hold when no APPLY is under way (then: the one being left)."""
    anchor_sha256: bytes = _NO_DIGEST
    state_digest: bytes = _NO_DIGEST
    operation: int = Update.NONE
    position: int = 0
    """Steps of the operation that are complete."""
    saved: int = Saved.NOTHING
    """Not NOTHING: UNDO holds the old contents of `saved_segment`, which may be half changed."""
    saved_segment: int = 0
    offset: int = 0
    """APPLY: of the payload in `path`."""
    formed_phase: int = NO_PHASE
    """The contribution in flight: its payload is in OUTBOX and its residual in FEEDBACK. NO_PHASE: nothing is."""
    argument: int = 0
    """FORM, SETTLE: phase. APPLY, COPY_BASE: round. RETURN: operation."""
    settled_phase: int = NO_PHASE
    settled_included: bool = False
    returned_operation: int = 0
    """Last ReturnWork that was completed."""
    path: str = ""


class WritableBytes(Protocol):
    """A writable byte buffer, such as mmap."""

    def __getitem__(self, key: slice) -> bytes | memoryview: ...

    def __setitem__(self, key: slice, value: bytes) -> None: ...


class UpdateJournal:
    """The journal in `window`; `state` is the newest whole copy, or the empty state in a fresh buffer."""

    def __init__(self, window: WritableBytes, plan_sha256: bytes) -> None:
        self._window = window
        self._crash = _CrashPoint.from_environment()
        found = [copy for copy in (self._read(0), self._read(1)) if copy is not None]
        self._sequence, self.state = max(found, key=lambda copy: copy[0], default=(0, JournalState()))
        if found and self.state.plan_sha256 != plan_sha256:
            raise WorkerError("the shared buffers belong to another run; the daemon must create new ones")
        self._plan_sha256 = plan_sha256

    def write(self, **changes: object) -> None:
        """Change the named fields, atomically with respect to SIGKILL."""
        changed = dataclasses.replace(self.state, plan_sha256=self._plan_sha256, **changes)  # type: ignore[arg-type]
        self._sequence += 1
        body = _pack(self._sequence, changed)
        start = (self._sequence % 2) * _COPY_BYTES
        record = body + hashlib.sha256(body).digest()
        self._crash.reached("before")
        self._window[start : start + len(record)] = record
        self._crash.reached("after")
        self.state = changed

    def _read(self, index: int) -> tuple[int, JournalState] | None:
        start = index * _COPY_BYTES
        body = bytes(self._window[start : start + _FORMAT.size])
        checksum = bytes(self._window[start + _FORMAT.size : start + _FORMAT.size + _CHECKSUM_BYTES])
        if hashlib.sha256(body).digest() != checksum:
            return None
        magic, sequence, *values, path = _FORMAT.unpack(body)
        if magic != _MAGIC:
            return None
        names = [field.name for field in dataclasses.fields(JournalState)]
        return sequence, JournalState(**dict(zip(names, [*values, path.rstrip(b"\0").decode()], strict=True)))


def _pack(sequence: int, state: JournalState) -> bytes:
    values = [getattr(state, field.name) for field in dataclasses.fields(state)]
    path = str(values.pop()).encode()
    return _FORMAT.pack(_MAGIC, sequence, *values, path)


class _CrashPoint:
    """Kills this process at a chosen journal write; inactive unless the test hook is set."""

    def __init__(self, side: str = "", count: int = 0) -> None:
        self._side = side
        self._left = count

    @classmethod
    def from_environment(cls) -> _CrashPoint:
        side, _, count = os.environ.get(CRASH_VARIABLE, "").partition(":")
        return cls(side, int(count)) if count else cls()

    def reached(self, side: str) -> None:
        if side != self._side:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
