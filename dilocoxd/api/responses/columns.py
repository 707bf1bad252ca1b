"""Rows of rounds as columns for charts, and who took part in which: the same figures in a tenth of the bytes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from dilocoxd.answers.rounds import Participation, RoundColumns, RoundRow, SiteShare
from dilocoxd.api.responses.encoding import ROWS_PER_STEP

Figure = TypeVar("Figure")


def round_columns(rows: Sequence[RoundRow]) -> RoundColumns:
    """The committed ones of these rows; the round that is under way has no figures yet."""
    done = [row for row in rows if row.committed_at > 0]

    def column(pick: Callable[[RoundRow], Figure]) -> list[Figure]:
        return [pick(row) for row in done]

    return RoundColumns(
        round=column(lambda row: row.round),
        committed_at=column(lambda row: row.committed_at),
        contributors=column(lambda row: len(row.contributors)),
        tokens=column(lambda row: sum(one.tokens for one in row.contributors)),
        attempts=column(lambda row: row.attempts),
        bytes_sent=column(lambda row: row.bytes_sent),
        bytes_received=column(lambda row: row.bytes_received),
        exchange_s=column(lambda row: row.times.exchange_s),
        trainer_idle_s=column(lambda row: row.trainer_idle_s),
        next_inner_steps=column(lambda row: row.next_inner_steps),
        next_lowrank_r=column(lambda row: row.next_lowrank_r),
    )


async def columns_in_steps(rows: Sequence[RoundRow]) -> RoundColumns:
    """The same for many rows: the loop may do something else after every few milliseconds."""
    found: dict[str, list[Any]] = {field.name: [] for field in fields(RoundColumns)}
    for start in range(0, len(rows), ROWS_PER_STEP):
        part = round_columns(rows[start : start + ROWS_PER_STEP])
        for name, values in found.items():
            values.extend(getattr(part, name))
        await asyncio.sleep(0)
    return RoundColumns(**found)


def participation(rows: Sequence[RoundRow]) -> Participation:
    """Tokens of each site in each committed round of these rows."""
    done = sorted((row for row in rows if row.committed_at > 0), key=lambda row: row.round)
    by_site: dict[str, dict[int, int]] = {}
    for row in done:
        for one in row.contributors:
            by_site.setdefault(one.peer, {})[row.round] = one.tokens
    sites = [
        SiteShare(peer_id=peer, tokens=[shares.get(row.round, 0) for row in done])
        for peer, shares in sorted(by_site.items())
    ]
    return Participation(rounds=[row.round for row in done], sites=sites)
