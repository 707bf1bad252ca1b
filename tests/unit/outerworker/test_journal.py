"""The journal always gives back the newest whole state, however its last write was torn."""

from __future__ import annotations

import pytest

from dilocoxd.errors import WorkerError
from dilocoxd.outerworker.journal import JOURNAL_BYTES, JournalState, Saved, Update, UpdateJournal

PLAN = b"p" * 32


class TornWindow:
    """A buffer whose next write stops after some bytes, as a killed process leaves it."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.stop_after: int | None = None

    def __getitem__(self, key: slice) -> bytes:
        return bytes(self.data[key])

    def __setitem__(self, key: slice, value: bytes) -> None:
        part = value if self.stop_after is None else value[: self.stop_after]
        self.data[key.start : key.start + len(part)] = part


def test_fresh_buffer_is_the_empty_state() -> None:
    assert UpdateJournal(TornWindow(bytearray(JOURNAL_BYTES)), PLAN).state == JournalState()


def test_every_field_survives() -> None:
    window = TornWindow(bytearray(JOURNAL_BYTES))
    fields: dict[str, object] = {
        "is_loaded": True,
        "round": 2**63 - 1,
        "anchor_sha256": b"a" * 32,
        "state_digest": b"b" * 32,
        "operation": Update.SETTLE,
        "position": 5,
        "saved": Saved.OWNER_FEEDBACK,
        "saved_segment": 77,
        "offset": 2**40,
        "formed_phase": 2**62,
        "argument": 9,
        "settled_phase": -1,
        "settled_included": True,
        "path": "/some/where",
    }
    UpdateJournal(window, PLAN).write(**fields)
    assert UpdateJournal(window, PLAN).state == JournalState(plan_sha256=PLAN, **fields)  # type: ignore[arg-type]


def test_write_torn_at_any_byte_leaves_the_state_before_or_after() -> None:
    window = TornWindow(bytearray(JOURNAL_BYTES))
    journal = UpdateJournal(window, PLAN)
    for number in range(1, 4):
        journal.write(round=number)
    whole = bytes(window.data)
    for stop in range(0, JOURNAL_BYTES // 2, 13):
        torn = TornWindow(bytearray(whole))
        journal = UpdateJournal(torn, PLAN)
        torn.stop_after = stop
        journal.write(round=4, path="x" * 1000)
        assert UpdateJournal(torn, PLAN).state.round in ((3,) if stop < 1000 else (3, 4))


def test_buffers_of_another_run_are_refused() -> None:
    window = TornWindow(bytearray(JOURNAL_BYTES))
    UpdateJournal(window, PLAN).write(round=1)
    with pytest.raises(WorkerError, match="another run"):
        UpdateJournal(window, b"q" * 32)
