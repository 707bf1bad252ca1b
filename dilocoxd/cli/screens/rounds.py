"""The screens of `dilocoxd rounds`, `snapshots` and `log show`."""

import time
from collections.abc import Callable, Mapping, Sequence

from dilocoxd.answers.rounds import Contributor, LogEntry, RoundRow
from dilocoxd.answers.site import Snapshot
from dilocoxd.answers.words import in_bytes, in_time
from dilocoxd.cli.screens.layout import Column, table
from dilocoxd.site_names import short_id

HASH_CHARS = 12


def clock(unix: float) -> str:
    """Local time of day of a unix time, or a dash."""
    return time.strftime("%H:%M:%S", time.localtime(unix)) if unix else "-"


def rounds_screen(rows: Sequence[RoundRow], width: int | None) -> str:
    """Rounds, one line each; failures below theirs."""
    columns = [
        Column("round", [str(row.round) for row in rows], is_number=True),
        Column("committed", [clock(row.committed_at) for row in rows], 1),
        Column("sites", [str(len(row.contributors)) if row.contributors else "-" for row in rows], is_number=True),
        Column("we", [_we(row) for row in rows], 2),
        Column("attempts", [str(row.attempts) if row.attempts is not None else "-" for row in rows], 5, is_number=True),
        Column("gather", [_took(row.times.gather_s) for row in rows], 4, is_number=True),
        Column("exchange", [_took(row.times.exchange_s) for row in rows], 1, is_number=True),
        Column("apply", [_took(row.times.apply_s) for row in rows], 6, is_number=True),
        Column("up", [_moved(row.bytes_sent) for row in rows], 1, is_number=True),
        Column("down", [_moved(row.bytes_received) for row in rows], 1, is_number=True),
        Column("idle", [_took(row.trainer_idle_s) for row in rows], 3, is_number=True),
    ]
    return table(columns, width, [row.failures for row in rows])


def _we(row: RoundRow) -> str:
    """Whether we are in it; of one that is under way nobody knows."""
    if row.is_contributor:
        return "yes"
    return "no" if row.committed_at else "-"


def _took(seconds: float | None) -> str:
    return in_time(seconds) if seconds is not None else "-"


def _moved(count: int | None) -> str:
    return in_bytes(count) if count is not None else "-"


def snapshots_screen(rows: Sequence[Snapshot], width: int | None) -> str:
    """Snapshots, newest first."""
    return table(
        [
            Column("outer step", [str(row.round) for row in rows], is_number=True),
            Column("size", [in_bytes(row.total_bytes) for row in rows], is_number=True),
            Column("anchor", [row.anchor_sha256[:HASH_CHARS] for row in rows], 1),
            Column("state", [row.state_digest[:HASH_CHARS] for row in rows], 2),
            Column("chain head", [row.chain_head[:HASH_CHARS] for row in rows], 3),
        ],
        width,
    )


def log_screen(
    rows: Sequence[LogEntry],
    carries: Sequence[Mapping[str, tuple[int, ...]]],
    width: int | None,
    label: Callable[[str], str] = short_id,
) -> str:
    """Entries. `carries`, for each: contributor -> earlier phases whose work came with it. `label`: of a peer id."""
    who = [
        ", ".join(contributor_text(one, late.get(one.peer, ()), label) for one in row.contributors)
        for row, late in zip(rows, carries, strict=True)
    ]
    payloads = [in_bytes(row.payload_bytes) if row.payload_bytes is not None else "dropped" for row in rows]
    return table(
        [
            Column("round", [str(row.round) for row in rows], is_number=True),
            Column("entry", [row.entry_hash[:HASH_CHARS] for row in rows], 1),
            Column("votes", [str(len(row.votes)) for row in rows], 2, is_number=True),
            Column("payload", payloads, 3, is_number=True),
            Column("contributors (tokens)", who),
        ],
        width,
    )


def contributor_text(one: Contributor, carries: Sequence[int], label: Callable[[str], str] = short_id) -> str:
    """Who, how much, and what earlier work came with it."""
    late = f"; late: phases {', '.join(map(str, carries))}" if carries else ""
    return f"{label(one.peer)} ({one.tokens:,}{late})"
